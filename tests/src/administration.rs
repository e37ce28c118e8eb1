//! Creates users on servers and injects failures, through a driver's client or without a driver.
//!
//! The driver refuses servers before 4.4, so tests that run against all supported versions use an
//! [`Administrator`].

use bson::{Bson, Document, doc};
use mongodb::Client;
use tokio::sync::Mutex;

use crate::mongod::{Error, NewUser};
use crate::raw::RawClient;

/// A connection that runs commands with the rights of an administrator.
pub trait RunCommand {
    /// Returns the reply to a command. A reply with `ok: 0` is an error.
    fn run(
        &self,
        db: &str,
        command: Document,
    ) -> impl Future<Output = Result<Document, Error>> + Send;
}

impl RunCommand for Client {
    async fn run(&self, db: &str, command: Document) -> Result<Document, Error> {
        Ok(self.database(db).run_command(command).await?)
    }
}

/// A connection without a driver. It is logged in as the root user, if that user exists.
#[derive(Debug)]
pub struct Administrator(Mutex<RawClient>);

impl Administrator {
    pub(crate) fn new(client: RawClient) -> Self {
        Self(Mutex::new(client))
    }
}

impl RunCommand for Administrator {
    async fn run(&self, db: &str, command: Document) -> Result<Document, Error> {
        let reply = self.0.lock().await.command(db, command).await?;
        match reply.is_ok() {
            true => Ok(reply.body),
            false => Err(Error::Refused(reply.body)),
        }
    }
}

/// Creates a user. When the function returns, every server of the deployment knows the user.
pub async fn create_user(administrator: &impl RunCommand, user: &NewUser) -> Result<(), Error> {
    let mechanisms: Vec<_> = user
        .mechanisms
        .iter()
        .map(|mechanism| mechanism.name())
        .collect();
    // `isMaster` is the legacy name of `hello`. Servers of all versions know it.
    let hello = administrator.run("admin", doc! { "isMaster": 1 }).await?;
    // All members must acknowledge the command. If only a majority did, another member might not
    // know the user yet, and refuse the user's reads.
    let members = hello.get_array("hosts").map_or(1, Vec::len);
    let command = doc! {
        "createUser": &user.name,
        "pwd": &user.password,
        "mechanisms": mechanisms,
        "roles": &user.roles,
        "authenticationRestrictions": &user.restrictions,
        "writeConcern": { "w": i32::try_from(members).unwrap_or(1), "wtimeout": 30_000 },
    };
    administrator.run(&user.db, command).await.map(drop)
}

/// The number of commands that a fail point makes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailTimes {
    /// Only the next commands. The value is their number.
    Count(i32),
    /// All commands until [`clear_fail_command`] is called.
    Always,
}

/// Makes commands fail on the server of `administrator`, with the fail point `failCommand`.
///
/// `data` must have `failCommands` and an effect: `errorCode`, `closeConnection`, or
/// `blockConnection` with `blockTimeMS`. On a shared server, `appName` must limit the effect to one
/// application.
pub async fn fail_command(
    administrator: &impl RunCommand,
    times: FailTimes,
    data: Document,
) -> Result<(), Error> {
    let mode = match times {
        FailTimes::Count(times) => Bson::from(doc! { "times": times }),
        FailTimes::Always => Bson::from("alwaysOn"),
    };
    let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    administrator.run("admin", command).await.map(drop)
}

/// Switches off the fail point of [`fail_command`].
pub async fn clear_fail_command(administrator: &impl RunCommand) -> Result<(), Error> {
    let command = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    administrator.run("admin", command).await.map(drop)
}
