//! Logs connections in with a password or with the client certificate of the TLS connection. The
//! connections of clients' users log in with SCRAM keys instead (see
//! [`establish`](Connector::establish)).

use std::{fmt, io, sync::Arc};

use bson::{RawDocument, cstr, rawdoc};
use seawall_locks::Mutex;
use tokio::task::spawn_blocking;
use zeroize::Zeroizing;

use super::{
    Connection, Connector, EstablishError, EstablishStep, SecretDocument, ServerAddress,
    conversation_id, empty_exchange,
    establish::{hello, run_step},
    payload, sasl_continue, sasl_start,
};
use seawall_auth::{ClientConversation, ClientProofSent, DerivedKeys, Mechanism, ScramError};

/// A password, zeroed on drop.
pub type Password = Zeroizing<String>;

/// An account of Seawall itself at the servers. `Debug` does not print it.
#[derive(Clone)]
pub struct Account {
    name: String,
    source: String,
    method: LoginMethod,
    /// The keys that were last derived from the password. Clones share them.
    derived: Arc<Mutex<Option<DerivedKeys>>>,
}

/// The way in which an [`Account`] logs in.
#[derive(Clone)]
pub enum LoginMethod {
    /// SCRAM (RFC 5802) with a password.
    Scram {
        /// The mechanism. With `None`, the login uses SCRAM-SHA-256 for users that have keys for
        /// this mechanism, and SCRAM-SHA-1 for all other users, as drivers do.
        mechanism: Option<Mechanism>,
        /// The password.
        password: Password,
    },
    /// `PLAIN` (RFC 4616): the server gets the password itself.
    Plain {
        /// The password.
        password: Password,
    },
    /// `MONGODB-X509`: the server gets the user's name from Seawall's certificate, unless the
    /// account has a name.
    Certificate,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Account")
    }
}

impl Account {
    /// Creates an account. `source` is the database that the user is defined in. `name` may be
    /// empty for [`LoginMethod::Certificate`].
    pub fn new(name: &str, source: &str, method: LoginMethod) -> Self {
        Self {
            name: name.to_owned(),
            source: source.to_owned(),
            method,
            derived: Arc::default(),
        }
    }

    /// True if the server gets the password itself.
    pub fn sends_password(&self) -> bool {
        matches!(self.method, LoginMethod::Plain { .. })
    }

    /// True if the account logs in with the client certificate of the TLS connection.
    pub fn uses_certificate(&self) -> bool {
        matches!(self.method, LoginMethod::Certificate)
    }

    /// The same account with another password. An account that logs in with a certificate has no
    /// password and does not change.
    #[must_use]
    pub fn with_password(&self, new: &Password) -> Self {
        let mut method = self.method.clone();
        match &mut method {
            LoginMethod::Scram { password, .. } | LoginMethod::Plain { password } => {
                password.clone_from(new);
            }
            LoginMethod::Certificate => {}
        }
        Self::new(&self.name, &self.source, method)
    }

    /// Logs in on a connection on which no command has been sent.
    async fn log_in(&self, to: &mut NewConnection<'_>) -> Result<(), EstablishError> {
        match &self.method {
            LoginMethod::Scram {
                mechanism,
                password,
            } => {
                let mechanism = mechanism.unwrap_or_else(|| strongest(&to.hello_reply));
                self.log_in_with_scram(to, mechanism, password).await
            }
            LoginMethod::Plain { password } => {
                let message = Zeroizing::new(["", &self.name, password].join("\0"));
                let source = (cstr!("$db"), self.source.as_str());
                let start = sasl_start("PLAIN", source, message.as_bytes());
                to.run(&start).await.map(drop)
            }
            LoginMethod::Certificate => {
                let mut command = rawdoc! { "authenticate": 1, "mechanism": "MONGODB-X509" };
                if !self.name.is_empty() {
                    command.append(cstr!("user"), self.name.as_str());
                }
                command.append(cstr!("$db"), self.source.as_str());
                to.run(&command).await.map(drop)
            }
        }
    }

    async fn log_in_with_scram(
        &self,
        to: &mut NewConnection<'_>,
        mechanism: Mechanism,
        password: &Password,
    ) -> Result<(), EstablishError> {
        let (conversation, client_first) =
            ClientConversation::start(mechanism, &self.name, &to.nonce);
        let source = (cstr!("$db"), self.source.as_str());
        let start = sasl_start(mechanism.name(), source, &client_first);
        let first = to.run(&start).await?;
        let server_first = payload(&first);
        let proof = self.prove(to, conversation, &server_first, password);
        let (proof_sent, client_final) = proof.await?;
        let next = sasl_continue(conversation_id(&first), &self.source, &client_final);
        let last = to.run(&next).await?;
        let finished = proof_sent.finish(&payload(&last));
        finished.map_err(|source| to.scram(source))?;
        if let Some(empty) = empty_exchange(&last, &self.source) {
            to.run(&empty).await?;
        }
        Ok(())
    }

    /// Computes the proof. Derives keys from the password only if the last derived keys have
    /// another salt or iteration count, because PBKDF2 takes milliseconds.
    async fn prove(
        &self,
        to: &NewConnection<'_>,
        conversation: ClientConversation,
        server_first: &[u8],
        password: &Password,
    ) -> Result<(ClientProofSent, Zeroizing<Vec<u8>>), EstablishError> {
        let derived = self.derived.lock().clone();
        if let Some(DerivedKeys { client_key, keys }) = derived
            && let Ok((proof_sent, client_final)) =
                (conversation.clone()).respond(server_first, &client_key, &keys)
        {
            return Ok((proof_sent, Zeroizing::new(client_final)));
        }
        let (server_first, password) = (server_first.to_vec(), password.clone());
        // PBKDF2 must not run on a thread that serves operations.
        let deriving =
            spawn_blocking(move || conversation.respond_with_password(&server_first, &password));
        let proof = deriving.await.map_err(|error| to.failed(error.into()))?;
        let (proof_sent, client_final, derived) = proof.map_err(|source| to.scram(source))?;
        *self.derived.lock() = Some(derived);
        Ok((proof_sent, Zeroizing::new(client_final)))
    }
}

/// A connection that is about to log in.
struct NewConnection<'a> {
    connection: Connection,
    address: &'a ServerAddress,
    hello_reply: SecretDocument,
    nonce: String,
}

impl NewConnection<'_> {
    async fn run(&mut self, command: &RawDocument) -> Result<SecretDocument, EstablishError> {
        let step = EstablishStep::Authenticate;
        run_step(&mut self.connection, self.address, step, command).await
    }

    fn failed(&self, source: io::Error) -> EstablishError {
        EstablishError::Io {
            step: EstablishStep::Authenticate,
            address: self.address.clone(),
            source,
        }
    }

    fn scram(&self, source: ScramError) -> EstablishError {
        EstablishError::Scram {
            address: self.address.clone(),
            source,
        }
    }
}

impl Connector {
    /// Establishes a connection that is authenticated as `account`.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn establish_account(
        &self,
        address: &ServerAddress,
        account: &Account,
    ) -> Result<Connection, EstablishError> {
        let mut hello = hello();
        if let LoginMethod::Scram {
            mechanism: None, ..
        } = account.method
        {
            let user = format!("{}.{}", account.source, account.name);
            hello.append(cstr!("saslSupportedMechs"), user);
        }
        let establishing = async {
            let (connection, hello_reply) = self.connect_with_hello(address, hello).await?;
            let mut new = NewConnection {
                connection,
                address,
                hello_reply,
                nonce: self.nonce(),
            };
            account.log_in(&mut new).await?;
            Ok(new.connection)
        };
        self.within_limit(address, establishing).await
    }
}

/// SCRAM-SHA-256 if the server lists it for the user, otherwise SCRAM-SHA-1. `hello_reply` is the
/// reply to a `hello` with `saslSupportedMechs`.
fn strongest(hello_reply: &RawDocument) -> Mechanism {
    let listed = hello_reply.get_array("saslSupportedMechs");
    let mut listed = listed.into_iter().flatten().filter_map(Result::ok);
    let sha_256 = Mechanism::ScramSha256;
    match listed.any(|name| name.as_str() == Some(sha_256.name())) {
        true => sha_256,
        false => Mechanism::ScramSha1,
    }
}
