//! The service account: the user in the deployment's connection string. It reads the keys of users
//! (`lookup`) and the `serverStatus` of servers, but it never runs operations of clients.
//!
//! The account's connections are in no pool and do not count towards a pool's limits. So operations
//! of clients cannot prevent the service account from reading the keys of the next client. The
//! connections use the TLS configuration of the pools.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bson::RawDocument;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use seawall_command::UNAUTHORIZED;
use seawall_locks::Mutex;
use seawall_transport::connection::{
    Account, Connection, Connector, ControlError, EstablishError, Generation, Password,
    SecretDocument, ServerAddress, reply_is_ok,
};

/// Maximum number of connections of [`ServiceAccount::run`] to one server.
const MAX_CONNECTIONS: usize = 4;

/// Time after which an unused connection is closed.
const MAX_IDLE: Duration = Duration::from_secs(600);

/// A connection of at least this age is replaced if its command is refused with 13 (Unauthorized),
/// because the account may have been dropped and created again since the login. A newer connection
/// is kept: the account probably lacks a privilege, and a login for each command would not help.
const REFUSED_AFTER: Duration = Duration::from_secs(60);

/// The reason why a command of the service account got no reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    /// The host names in the connection string have not been resolved yet.
    #[error("the DNS name of the deployment's connection string is not resolved yet")]
    Unresolved,
    /// A connection could not be established or could not log in.
    #[error(transparent)]
    Establish(#[from] EstablishError),
    /// The command got no valid reply.
    #[error("the command of the service account failed: {0}")]
    Exchange(#[from] ControlError),
    /// The reply did not arrive in time.
    #[error("no reply arrived within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

impl ServiceError {
    /// True if the login failed in such a way that a new attempt with the same password would fail
    /// too, for example because the server refused it.
    pub(crate) fn is_refused_login(&self) -> bool {
        match self {
            Self::Establish(error) => error.is_refused_login(),
            Self::Unresolved | Self::Exchange(_) | Self::TimedOut(_) => false,
        }
    }
}

/// Logs in as the service account, and runs its commands.
#[derive(Debug)]
pub(crate) struct ServiceAccount {
    connector: Connector,
    login: Mutex<CurrentLogin>,
    /// The connections of [`Self::run`], by server.
    servers: Mutex<HashMap<ServerAddress, Arc<ServerConnections>>>,
}

#[derive(Debug, Default)]
struct CurrentLogin {
    /// The account; `None` until the connection string has been resolved.
    account: Option<Arc<Account>>,
    /// The password that a reload has set; `None` for the password of the connection string.
    password: Option<Password>,
}

/// The connections of [`ServiceAccount::run`] to one server.
#[derive(Debug)]
struct ServerConnections {
    permits: Semaphore,
    /// Unused connections. The connection that was used last is at the end.
    unused: Mutex<Vec<ServiceConnection>>,
}

impl ServerConnections {
    fn new() -> Self {
        Self {
            permits: Semaphore::new(MAX_CONNECTIONS),
            unused: Mutex::default(),
        }
    }

    fn keep(&self, mut connection: ServiceConnection) {
        connection.connection.last_used_at = Instant::now();
        self.unused.lock().push(connection);
    }
}

/// A connection that is logged in as the service account.
#[derive(Debug)]
pub(crate) struct ServiceConnection {
    account: Arc<Account>,
    connection: Connection,
}

impl ServiceConnection {
    /// Sends a command, which must contain `$db`, and returns the reply. A reply with `ok: 0` is
    /// not an error here.
    ///
    /// Not cancel safe: if the future is dropped before it ends, the caller must close the
    /// connection.
    pub(crate) async fn run(
        &mut self,
        command: &RawDocument,
    ) -> Result<SecretDocument, ControlError> {
        self.connection.run(command).await.map(SecretDocument::from)
    }

    /// True if the server refused the command with 13 (Unauthorized) and the connection is not new.
    /// If the account was dropped and created again, existing connections have no user any more, so
    /// the command may succeed on a new connection.
    pub(crate) fn may_have_lost_its_user(&self, reply: &RawDocument) -> bool {
        let is_refused = matches!(reply_is_ok(reply), Err((UNAUTHORIZED, _)));
        is_refused && self.connection.created_at.elapsed() >= REFUSED_AFTER
    }
}

impl ServiceAccount {
    /// Creates a service account that cannot log in before [`Self::set_account`] is called.
    pub(crate) fn new(connector: Connector) -> Self {
        Self {
            connector,
            login: Mutex::default(),
            servers: Mutex::default(),
        }
    }

    /// Sets the account. If [`Self::set_password`] was called before, that password replaces the
    /// password of `account`.
    pub(crate) fn set_account(&self, account: Account) {
        let mut login = self.login.lock();
        let account = match &login.password {
            Some(password) => account.with_password(password),
            None => account,
        };
        login.account = Some(Arc::new(account));
    }

    /// Changes the password. Connections with the earlier password are not used again.
    pub(crate) fn set_password(&self, password: Password) {
        let mut login = self.login.lock();
        if let Some(account) = &mut login.account {
            *account = Arc::new(account.with_password(&password));
        }
        login.password = Some(password);
        drop(login);
        self.close_outdated();
    }

    /// Closes the unused connections that have ended, that were unused for [`MAX_IDLE`], or that
    /// have another login or TLS configuration than new connections. Called once a second, and
    /// after a change of the password or of the TLS configuration.
    pub(crate) fn close_outdated(&self) {
        let servers: Vec<_> = self.servers.lock().values().cloned().collect();
        for server in servers {
            let mut unused = server.unused.lock();
            let closed = unused.extract_if(.., |kept| {
                kept.connection.last_used_at.elapsed() >= MAX_IDLE || !self.is_current(kept)
            });
            let closed: Vec<_> = closed.collect();
            drop(unused);
            drop(closed);
        }
        // A running command holds another reference to the connections of its server.
        self.servers
            .lock()
            .retain(|_, server| Arc::strong_count(server) > 1 || !server.unused.lock().is_empty());
    }

    /// True if the server has not closed the connection, and a new connection would have the same
    /// login and the same TLS configuration.
    pub(crate) fn is_current(&self, kept: &mut ServiceConnection) -> bool {
        let current = self.login.lock().account.clone();
        current.is_some_and(|current| Arc::ptr_eq(&current, &kept.account))
            && kept.connection.tls_version == self.connector.tls_version()
            && !kept.connection.stream.has_ended()
    }

    /// Establishes a connection that is logged in as the service account.
    ///
    /// # Errors
    /// [`ServiceError::Unresolved`] or [`ServiceError::Establish`].
    pub(crate) async fn establish(
        &self,
        server: &ServerAddress,
    ) -> Result<ServiceConnection, ServiceError> {
        let account = self.login.lock().account.clone();
        let account = account.ok_or(ServiceError::Unresolved)?;
        let connection = self.connector.establish_account(server, &account).await?;
        Ok(ServiceConnection {
            account,
            connection,
        })
    }

    /// Runs a command, which must contain `$db`, at a server. `generation` is the current
    /// generation of the server's pool: connections of an earlier generation are not used. If a
    /// kept connection fails, or may no longer have a user
    /// ([`ServiceConnection::may_have_lost_its_user`]), the command is sent again on a new
    /// connection. So it must be a command that may run twice. A reply with `ok: 0` is not an error
    /// here.
    ///
    /// Cancel safe: if the future is dropped, its connection is closed.
    ///
    /// # Errors
    /// See [`ServiceError`].
    pub(crate) async fn run(
        &self,
        server: &ServerAddress,
        generation: Generation,
        command: &RawDocument,
    ) -> Result<SecretDocument, ServiceError> {
        let connections = self.connections(server);
        let _permit = connections.permits.acquire().await;
        if let Some(mut kept) = self.take(&connections, generation) {
            match self.run_on(&mut kept, command).await {
                Ok(reply) if kept.may_have_lost_its_user(&reply) => {}
                Ok(reply) => {
                    connections.keep(kept);
                    return Ok(reply);
                }
                Err(error) => {
                    tracing::debug!(%server, %error, "idle connection of the service account failed");
                }
            }
        }
        let mut new = self.establish(server).await?;
        new.connection.generation = generation;
        let reply = self.run_on(&mut new, command).await?;
        connections.keep(new);
        Ok(reply)
    }

    fn connections(&self, server: &ServerAddress) -> Arc<ServerConnections> {
        let mut servers = self.servers.lock();
        let new = || Arc::new(ServerConnections::new());
        Arc::clone(servers.entry(server.clone()).or_insert_with(new))
    }

    async fn run_on(
        &self,
        connection: &mut ServiceConnection,
        command: &RawDocument,
    ) -> Result<SecretDocument, ServiceError> {
        let limit = self.connector.limit();
        let reply = timeout(limit, connection.run(command)).await;
        Ok(reply.map_err(|_| ServiceError::TimedOut(limit))??)
    }

    /// Removes the last usable connection from the unused connections of a server. Closes the
    /// unusable connections behind it. `None` if there is no usable connection.
    fn take(
        &self,
        connections: &ServerConnections,
        generation: Generation,
    ) -> Option<ServiceConnection> {
        loop {
            let mut last = connections.unused.lock().pop()?;
            if last.connection.generation == generation && self.is_current(&mut last) {
                return Some(last);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};
    use futures_util::future::join_all;
    use seawall_auth::NonceSource;
    use seawall_transport::connection::LoginMethod;
    use tokio::sync::Notify;

    use super::*;
    use crate::scripted::{Response, ScriptedServer};

    fn account(password: &str) -> Account {
        let password = Password::new(password.to_owned());
        Account::new("service", "$external", LoginMethod::Plain { password })
    }

    fn service_account() -> ServiceAccount {
        let nonces = Arc::new(NonceSource::new().unwrap());
        let limit = Duration::from_secs(30);
        let service_account = ServiceAccount::new(Connector::new(None, Vec::new(), limit, nonces));
        service_account.set_account(account("secret"));
        service_account
    }

    /// A server that accepts every login and replies to `usersInfo` with `reply`.
    async fn server(reply: impl Fn() -> Response + Clone + Send + 'static) -> ScriptedServer {
        let script = move || {
            let reply = reply.clone();
            move |command: &RawDocument| match command.iter().next().unwrap().unwrap().0.as_str() {
                "usersInfo" => reply(),
                _ => Response::Reply(ok()),
            }
        };
        ScriptedServer::start(script).await
    }

    fn ok() -> RawDocumentBuf {
        rawdoc! { "ok": 1 }
    }

    /// Number of unused connections to a server.
    fn unused(service_account: &ServiceAccount, server: &ScriptedServer) -> usize {
        let connections = service_account.connections(server.address());
        let unused = connections.unused.lock();
        unused.len()
    }

    async fn ask(
        service_account: &ServiceAccount,
        server: &ScriptedServer,
        generation: Generation,
    ) -> Result<SecretDocument, ServiceError> {
        let command = rawdoc! { "usersInfo": 1, "$db": "admin" };
        let asked = service_account.run(server.address(), generation, &command);
        asked.await
    }

    #[tokio::test]
    async fn the_service_account_sends_nothing_before_its_connection_string_is_resolved() {
        let server = server(|| Response::Reply(ok())).await;
        let service_account = service_account();
        service_account.login.lock().account = None;
        let asked = ask(&service_account, &server, Generation::default()).await;
        assert!(matches!(asked, Err(ServiceError::Unresolved)));
        assert_eq!(server.accepted(), 0);
    }

    #[tokio::test]
    async fn a_connection_is_reused_until_its_end_or_until_a_new_password_or_generation() {
        let server = server(|| Response::Reply(ok())).await;
        let service_account = service_account();
        let first = Generation::default();
        for (change, generation, accepted) in [
            ("none", first, 1),
            ("none", first, 1),
            ("generation", first.next(), 2),
            ("password", first.next(), 3),
        ] {
            if change == "password" {
                service_account.set_password(Password::new("new".to_owned()));
                assert_eq!(unused(&service_account, &server), 0);
            }
            ask(&service_account, &server, generation).await.unwrap();
            assert_eq!(server.accepted(), accepted, "{change}");
        }
        server.close_all().await;
        ask(&service_account, &server, first.next()).await.unwrap();
        assert_eq!(server.accepted(), 1);
    }

    /// The server may close a connection while the command is on its way.
    #[tokio::test]
    async fn a_command_is_repeated_once_on_a_new_connection_if_a_kept_connection_fails() {
        let replies = Arc::new(Mutex::new(vec![
            Response::Close,
            Response::Reply(ok()),
            Response::Close,
            Response::Reply(ok()),
        ]));
        let server = server(move || replies.lock().pop().unwrap()).await;
        let service_account = service_account();
        let generation = Generation::default();
        ask(&service_account, &server, generation).await.unwrap();
        // The kept connection fails, and then the new one succeeds.
        ask(&service_account, &server, generation).await.unwrap();
        assert_eq!(server.accepted(), 2);
        (service_account.connections(server.address()).unused.lock()).clear();
        // A new connection fails, and the command is not repeated.
        let failed = ask(&service_account, &server, generation).await;
        assert!(matches!(failed, Err(ServiceError::Exchange(_))));
        assert_eq!(server.accepted(), 3);
    }

    #[tokio::test]
    async fn lookups_of_keys_use_at_most_four_connections_to_a_server() {
        let release = Arc::new(Notify::new());
        let held = Arc::clone(&release);
        let slow = server(move || Response::ReplyAfter(Arc::clone(&held), ok())).await;
        let other = server(|| Response::Reply(ok())).await;
        let service_account = service_account();
        let generation = Generation::default();
        let asking = join_all((0..10).map(|_| ask(&service_account, &slow, generation)));
        let releasing = async {
            loop {
                release.notify_one();
                tokio::task::yield_now().await;
            }
        };
        let replies = tokio::select! {
            replies = asking => replies,
            () = releasing => unreachable!("the loop does not end"),
        };
        assert!(replies.iter().all(Result::is_ok));
        assert_eq!(slow.accepted(), MAX_CONNECTIONS);
        assert_eq!(unused(&service_account, &slow), MAX_CONNECTIONS);
        // Each server has its own connections.
        ask(&service_account, &other, generation).await.unwrap();
        assert_eq!(unused(&service_account, &slow), MAX_CONNECTIONS);
        assert_eq!(unused(&service_account, &other), 1);
    }

    #[test]
    fn a_server_is_forgotten_only_if_no_command_is_about_to_use_its_connections() {
        let service_account = service_account();
        let address: ServerAddress = "h:27017".parse().unwrap();
        let connections = service_account.connections(&address);
        service_account.close_outdated();
        assert!(Arc::ptr_eq(
            &connections,
            &service_account.connections(&address)
        ));
        drop(connections);
        service_account.close_outdated();
        assert!(service_account.servers.lock().is_empty());
    }

    /// 13 is Unauthorized.
    #[tokio::test]
    async fn a_connection_older_than_a_minute_is_replaced_after_error_13() {
        let refusal = || Response::Reply(rawdoc! { "ok": 0, "code": 13 });
        let server = server(refusal).await;
        let service_account = service_account();
        for (age, accepted) in [(0, 1), (0, 1), (60, 2), (0, 2)] {
            let connections = service_account.connections(server.address());
            for kept in connections.unused.lock().iter_mut() {
                kept.connection.created_at -= Duration::from_secs(age);
            }
            let asked = ask(&service_account, &server, Generation::default());
            assert_eq!(asked.await.unwrap().get_i32("code").unwrap(), 13);
            assert_eq!(server.accepted(), accepted);
        }
    }
}
