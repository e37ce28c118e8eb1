//! The words that some keys accept as their values. Each set of words is an enum.

use std::num::NonZeroU32;

use toml::Value;

use crate::declare::words;
use crate::kinds::MAX_CONNECTIONS;
use crate::read::{Given, Setting, parts};
use crate::schema::KeyKind;

words! {
    /// An event that begins a capture (a recording of clients' operations).
    CaptureEvent {
        /// A storm began: clients connect and disconnect far more often than usual.
        Storm = "storm",
        /// A stall was detected: the operations of a server take far longer than usual.
        Stall = "stall",
        /// The operations of a shape became slower or faster, or the shape is new. A shape is a
        /// command without its values.
        Change = "change",
    }
}

words! {
    /// Kind of the pseudonyms that replace the applications' data in captures.
    CaptureRedaction {
        /// Values are recorded unchanged.
        None = "none",
        /// Pseudonyms have the type of the values, and strings keep their length. Equal values have
        /// equal pseudonyms.
        Equality = "equality",
        /// As `Equality`. In addition, the pseudonyms of numbers are in the same order as the
        /// numbers (some need a larger type), and those of dates in the same order as the dates. If
        /// two strings have an equal prefix, their pseudonyms have an equal prefix too.
        Ordered = "ordered",
    }
}

words! {
    /// A compressor of the MongoDB protocol.
    Compressor {
        /// Fast, but the results are larger than those of the other two compressors.
        Snappy = "snappy",
        /// The compressor that saves the most bytes for its CPU time.
        Zstd = "zstd",
        /// The compressor that most drivers support without a further library.
        Zlib = "zlib",
    }
}

/// The events that begin a capture, separated by commas.
impl Setting for Vec<CaptureEvent> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let mut events = Self::new();
        for text in parts(given.text(value)?) {
            match CaptureEvent::named(text) {
                Some(event) => events.push(event),
                None => given.add(
                    text,
                    "must be one or more of storm, stall and change, joined by commas",
                ),
            }
        }
        Some(events)
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

impl Setting for Vec<Compressor> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let joined = given.text(value)?;
        let mut compressors = Self::new();
        for name in joined.split(',').filter(|_| joined != "disabled") {
            match Compressor::named(name.trim()) {
                Some(compressor) if !compressors.contains(&compressor) => {
                    compressors.push(compressor);
                }
                _ => {
                    given.add(
                        joined,
                        "must be \"disabled\", or some of snappy, zstd and zlib, each once, joined by commas",
                    );
                    break;
                }
            }
        }
        Some(compressors)
    }
}

words! {
    /// How clients are served.
    Mode {
        /// Seawall authenticates clients and runs each operation on a pooled connection of the
        /// client's user.
        Pooled = "pooled",
        /// Each client connection has its own server connection. Seawall observes the bytes and
        /// passes them unchanged, but refuses a few commands.
        Relay = "relay",
    }
}

words! {
    /// Use of the PROXY protocol by load balancers in front of Seawall.
    ProxyProtocol {
        /// Connections of clients begin without a header of the PROXY protocol.
        Off = "off",
        /// Each connection begins with a header that contains the client's address.
        Accept = "accept",
    }
}

words! {
    /// Use of TLS by clients.
    TlsMode {
        /// Clients must use TLS.
        Require = "require",
        /// Clients may use TLS, or connect without it.
        Prefer = "prefer",
    }
}

words! {
    /// Handling of clients' certificates.
    ClientCertificate {
        /// No certificate is requested.
        None = "none",
        /// A certificate is requested, and verified if the client sends one.
        Optional = "optional",
        /// Each client must send a valid certificate.
        Required = "required",
    }
}

words! {
    /// Source of the clients' credentials.
    Credentials {
        /// Like `lookup` if the connection string has a service account. Otherwise like `users` if
        /// users are configured. Otherwise like `self`, or like `none` if the deployment has no
        /// access control.
        Auto = "auto",
        /// At the first login of each user, Seawall reads the user's stored keys from a server,
        /// with the rights of this user.
        Own = "self",
        /// Seawall logs in as the service account, and reads the credentials of all users. The
        /// service account is the user in the connection string.
        Lookup = "lookup",
        /// The configuration contains the users and their credentials.
        Users = "users",
        /// Clients need no credentials, because the deployment has no access control.
        None = "none",
    }
}

words! {
    /// Handling of clients that log in by a mechanism other than SCRAM.
    OtherMechanisms {
        /// The client gets the error that the mechanism is not enabled.
        Refuse = "refuse",
        /// The client gets its own server connection. Its login and its other messages pass
        /// unchanged, except for a few commands that Seawall refuses.
        Relay = "relay",
    }
}

/// The limit of the operations that run on one server at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// Seawall finds the limit by measuring the server's throughput.
    Auto,
    /// The limit is this number of operations.
    Fixed(NonZeroU32),
    /// There is no limit.
    Off,
}

impl Concurrency {
    // Each operation uses a connection, so a limit above the maximum number of connections would
    // have no effect.
    /// The kind of a key that accepts one of the words or a number of operations.
    pub(crate) const KIND: KeyKind = KeyKind::IntegerOr {
        accepted: &["auto", "off"],
        min: 1,
        max: MAX_CONNECTIONS,
    };
}

impl Setting for Concurrency {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        match value.as_str() {
            Some("auto") => Some(Self::Auto),
            Some("off") => Some(Self::Off),
            _ => NonZeroU32::read(value, given).map(Self::Fixed),
        }
    }
}

words! {
    /// Compression of exported metrics.
    Compression {
        /// Requests are not compressed.
        None = "none",
        /// Requests are compressed with gzip.
        Gzip = "gzip",
    }
}

words! {
    /// Severity of an event.
    LogLevel {
        /// A part of Seawall does not work.
        Error = "error",
        /// A server or a client has failed, or there is a risk.
        Warn = "warn",
        /// A normal event, for example a start, a reload, a capture, or a change of the topology.
        Info = "info",
        /// Events of single connections and operations.
        Debug = "debug",
        /// All events.
        Trace = "trace",
    }
}

words! {
    /// The format of the log.
    LogFormat {
        /// One line of text for each event, for people.
        Text = "text",
        /// One JSON object for each event, for programs.
        Json = "json",
    }
}
