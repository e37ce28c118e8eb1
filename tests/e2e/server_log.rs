//! Reads the log of a mongod.

use std::{fs, time::Duration};

use bson::doc;
use seawall_tests::{
    eventually::eventually,
    mongod::{self, Standalone},
    raw::RawClient,
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

/// Options of a mongod with authentication that logs all commands and the certificates of clients.
pub(crate) fn detailed() -> mongod::Options {
    let verbosity = ["logComponentVerbosity", "{network: {verbosity: 2}}"];
    mongod::Options {
        arguments: ["--slowms", "-1"].map(str::to_owned).to_vec(),
        parameters: vec![verbosity.map(str::to_owned).into()],
        ..mongod::Options::with_auth()
    }
}

/// The log of this mongod.
pub(crate) fn read(server: &Standalone) -> String {
    let path = server.mongod().data_dir().join("mongod.log");
    fs::read_to_string(path).unwrap()
}

/// Runs a find through Seawall, with this comment. Returns the subject of the certificate that
/// Seawall has presented on the find's server connection. The mongod must have the options
/// [`detailed`], and no other command may have the same comment.
pub(crate) async fn presented_subject(
    server: &Standalone,
    client: &mut RawClient,
    comment: &str,
) -> String {
    let find = doc! { "find": "things", "comment": comment };
    client.expect_ok("test", find).await;
    let logged = async || {
        let log = read(server);
        let lines = log.lines().map(serde_json::from_str);
        // The last line may be incomplete.
        let lines: Vec<Value> = lines.filter_map(Result::ok).collect();
        let mut commands = lines.iter();
        let ran = commands.find(|line| line["attr"]["command"]["comment"] == comment)?;
        let message = "Accepted TLS connection from peer";
        let mut accepted = lines.iter().filter(|line| line["msg"] == message);
        let accepted = accepted.find(|line| line["ctx"] == ran["ctx"])?;
        accepted["attr"]["peerSubject"].as_str().map(str::to_owned)
    };
    eventually(LIMIT, logged).await.unwrap()
}
