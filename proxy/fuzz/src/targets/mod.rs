//! The targets, by name.

mod admin;
mod capture;
mod command;
mod compressed;
mod config;
mod fingerprint;
mod message;
mod proxy_header;
mod reader;
mod recorder_file;
mod redact;
mod reply;
mod scram;
mod users_info;

pub(crate) use self::reader::LARGE_SHARE;
pub use self::{
    admin::admin,
    capture::capture,
    command::command,
    compressed::compressed,
    config::config,
    fingerprint::fingerprint,
    message::message,
    proxy_header::proxy_header,
    reader::reader,
    recorder_file::recorder_file,
    redact::redact,
    reply::reply,
    scram::{scram_carried, scram_client, scram_server},
    users_info::users_info,
};

/// A function that accepts any bytes. It panics if a property does not hold for these bytes.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("message", message),
    ("reader", reader),
    ("command", command),
    ("reply", reply),
    ("scram_server", scram_server),
    ("scram_client", scram_client),
    ("scram_carried", scram_carried),
    ("users_info", users_info),
    ("compressed", compressed),
    ("fingerprint", fingerprint),
    ("admin", admin),
    ("config", config),
    ("proxy_header", proxy_header),
    ("capture", capture),
    ("recorder_file", recorder_file),
    ("redact", redact),
];
