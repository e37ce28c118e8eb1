//! Administration of servers: users and failures, over a driver's client or without one.
//!
//! The driver refuses servers before 4.4. A test that is to run against every supported version takes an
//! [`Administrator`].

use bson::{Bson, Document, doc};
use mongodb::Client;
use tokio::sync::Mutex;

use crate::mongod::{Error, NewUser};
use crate::raw::RawClient;

/// Runs commands with the rights of an administrator.
pub trait RunCommand {
    /// The reply to a command; one with `ok: 0` is an error.
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

/// A connection without a driver that has logged in as the root user, where there is one.
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

/// Makes a user, known to every member when this returns.
pub async fn create_user(administrator: &impl RunCommand, user: &NewUser) -> Result<(), Error> {
    let mechanisms: Vec<_> = user
        .mechanisms
        .iter()
        .map(|mechanism| mechanism.name())
        .collect();
    // By its old name, which every version knows.
    let hello = administrator.run("admin", doc! { "isMaster": 1 }).await?;
    // A majority would leave a member that does not know the user yet, and refuses its first read there.
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

/// How often a command is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailTimes {
    /// This often, then no more.
    Count(i32),
    /// Until [`clear_fail_command`].
    Always,
}

/// Makes commands fail on the server that `administrator` talks to, as `failCommand` takes it.
///
/// `data` needs `failCommands` and what is to happen: `errorCode`, `closeConnection`, or
/// `blockConnection` with `blockTimeMS`. With `appName` only one application is concerned, which
/// tests on a shared server need.
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

/// Ends what [`fail_command`] began.
pub async fn clear_fail_command(administrator: &impl RunCommand) -> Result<(), Error> {
    let command = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    administrator.run("admin", command).await.map(drop)
}
