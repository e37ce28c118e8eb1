//! Tests of logins that do not succeed: when Seawall sends the refusal of a login, and how a login
//! ends when its client disconnects.

use std::{
    future::pending,
    sync::{Arc, mpsc},
    time::Duration,
};

use bson::{Binary, RawDocumentBuf, rawdoc, spec::BinarySubtype};
use tokio::{
    net::UnixStream,
    task::{spawn_blocking, yield_now},
    time::{Instant, advance, pause, timeout},
};

use super::{
    CredentialMode, LIMIT, LoginScene, SHA_256, SOURCE, UserSecret, configured, password,
    users::stored_keys,
};
use crate::{
    client::{
        client_end::ClientEnd,
        login::{LoginContext, LoginEnd, SaslConversation},
    },
    limits::{LimitNumbers, Limits, OperationPermits},
    observe::Recorder,
};
use seawall_auth::ClientConversation;
use seawall_command::AUTHENTICATION_FAILED;
use seawall_transport::{MessageReader, Sharer, Stream};

/// The connection of a client, and the other parts of a [`LoginContext`] that are not in the
/// [`LoginScene`].
struct LoginConnection {
    limits: Limits,
    recorder: Arc<Recorder>,
    stream: Stream,
    reader: MessageReader,
}

impl LoginConnection {
    /// Returns the connection, and its other end.
    fn pair() -> (Self, UnixStream) {
        let (stream, client) = UnixStream::pair().unwrap();
        let connected = Self {
            limits: Limits::new(LimitNumbers::of_each(1), OperationPermits::new(1)),
            recorder: Recorder::without_shapes(),
            stream: Stream::Unix(stream),
            reader: MessageReader::new(Sharer::Local),
        };
        (connected, client)
    }

    fn context<'a>(&'a mut self, scene: &'a LoginScene) -> LoginContext<'a> {
        LoginContext {
            credentials: &scene.credentials,
            recorder: &self.recorder,
            nonces: &scene.nonces,
            limits: &self.limits,
            peer: None,
            client: ClientEnd {
                stream: &mut self.stream,
                reader: &mut self.reader,
                write_idle: LIMIT,
                is_awaiting: true,
                ends_if_gone: true,
                gave_up: false,
            },
        }
    }
}

fn sasl_start(scene: &LoginScene, user: &str, mechanism: &str) -> RawDocumentBuf {
    let (_, payload) = ClientConversation::start(SHA_256, user, &scene.nonces.nonce());
    sasl_start_with(mechanism, &payload)
}

fn sasl_start_with(mechanism: &str, payload: &[u8]) -> RawDocumentBuf {
    rawdoc! { "saslStart": 1, "mechanism": mechanism, "payload": binary(payload) }
}

fn binary(payload: &[u8]) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: payload.to_vec(),
    }
}

/// The client sends its proof two seconds after the challenge, and the keys of the challenge are
/// still cached. The clock is paused, and Tokio does not move it while the blocking task `holding`
/// runs. So the time limit for reading the keys again does not end before the server has replied.
#[tokio::test]
async fn a_late_proof_of_an_old_password_is_refused_although_the_old_keys_are_cached() {
    let scene = LoginScene::new().await;
    scene.log_in("u", "secret").await.unwrap();
    let (mut connected, _client) = LoginConnection::pair();
    let mut context = connected.context(&scene);
    let (conversation, payload) = ClientConversation::start(SHA_256, "u", &scene.nonces.nonce());
    let start = sasl_start_with("SCRAM-SHA-256", &payload);
    let started = SaslConversation::start(&mut context, &start, SOURCE).await;
    let (login, challenge) = started.unwrap_or_else(|_| panic!("the user is known"));
    let server_first = challenge.get_binary("payload").unwrap().bytes;
    let responded = conversation.respond_with_password(server_first, "secret");
    let (_, client_final, _) = responded.unwrap();
    let proof = rawdoc! {
        "saslContinue": 1, "conversationId": 1, "payload": binary(&client_final)
    };
    scene.server.set_password("u", "changed");
    pause();
    advance(Duration::from_secs(2)).await;
    let (release, held) = mpsc::channel::<()>();
    let holding = spawn_blocking(move || held.recv());
    let read = async {
        while scene.server.count("usersInfo") < 2 || !scene.credentials.readings.lock().is_empty() {
            yield_now().await;
        }
        drop(release);
        pending::<()>().await;
    };
    let end = tokio::select! {
        end = login.proceed(&mut context, &proof, SOURCE, None) => end.err(),
        () = read => None,
    };
    assert!(matches!(end, Some(LoginEnd::Refused(error)) if error.code == AUTHENTICATION_FAILED));
    assert!(holding.await.unwrap().is_err());
}

/// Refusals are sent only at fixed times, so that their delay does not show why a login was
/// refused.
#[tokio::test]
async fn the_reply_to_a_refused_login_is_sent_50_ms_after_the_login_began() {
    let scene = LoginScene::with(CredentialMode::Users, Vec::new()).await;
    let (mut connected, client) = LoginConnection::pair();
    let mut context = connected.context(&scene);
    pause();
    let start = sasl_start(&scene, "nobody", "SCRAM-SHA-256");
    let began = Instant::now();
    let end = SaslConversation::start(&mut context, &start, SOURCE)
        .await
        .err();
    assert!(matches!(end, Some(LoginEnd::Refused(error)) if error.code == AUTHENTICATION_FAILED));
    // Timers have a resolution of a millisecond.
    let elapsed = began.elapsed().as_millis();
    assert!((50..=51).contains(&elapsed), "{elapsed} ms");
    // A refusal that does not depend on the user is sent at once.
    let start = sasl_start(&scene, "nobody", "PLAIN");
    let began = Instant::now();
    let end = SaslConversation::start(&mut context, &start, SOURCE)
        .await
        .err();
    assert!(matches!(end, Some(LoginEnd::Refused(_))));
    assert_eq!(began.elapsed(), Duration::ZERO);
    // A client that has disconnected gets no reply.
    drop(client);
    let start = sasl_start(&scene, "nobody", "SCRAM-SHA-256");
    let end = SaslConversation::start(&mut context, &start, SOURCE)
        .await
        .err();
    assert!(matches!(end, Some(LoginEnd::Gone)));
}

#[tokio::test]
async fn a_login_whose_client_has_disconnected_ends_before_a_server_checks_it() {
    let scene = LoginScene::new().await;
    let (mut connected, client) = LoginConnection::pair();
    let mut context = connected.context(&scene);
    drop(client);
    let start = sasl_start(&scene, "u", "SCRAM-SHA-256");
    let end = SaslConversation::start(&mut context, &start, SOURCE)
        .await
        .err();
    assert!(matches!(end, Some(LoginEnd::Gone)));
    // The user is not remembered as unknown, and its next first login need not wait.
    let _first_login = scene.start("u").await.unwrap();
    // This login waits for the user's first login in progress, and ends because its client has
    // left.
    let end = SaslConversation::start(&mut context, &start, SOURCE)
        .await
        .err();
    assert!(matches!(end, Some(LoginEnd::Gone)));
    assert_eq!(scene.server.count("saslStart"), 1);
}

/// The login still makes the user known, so Seawall checks the user's next login itself.
#[tokio::test]
async fn a_login_with_a_configured_password_continues_after_its_client_has_disconnected() {
    let scene = LoginScene::with(CredentialMode::Users, configured(password("secret"))).await;
    let release = scene.server.hold("saslContinue");
    let (mut connected, client) = LoginConnection::pair();
    let mut context = connected.context(&scene);
    drop(client);
    let start = sasl_start(&scene, "u", "SCRAM-SHA-256");
    let end = SaslConversation::start(&mut context, &start, SOURCE)
        .await
        .err();
    assert!(matches!(end, Some(LoginEnd::Gone)));
    release.notify_one();
    let learnt = async {
        while scene.known("u").is_none() {
            yield_now().await;
        }
    };
    timeout(LIMIT, learnt).await.unwrap();
}

/// Only a limited number of logins may be in progress at the servers at a time.
#[tokio::test]
async fn a_login_that_waits_at_the_conversation_limit_ends_when_its_client_disconnects() {
    let secret = UserSecret::Keys {
        sha1: None,
        sha256: Some(stored_keys("u", "secret")),
    };
    let scene = LoginScene::with(CredentialMode::Users, configured(secret)).await;
    // These conversations reach the limit, so no further conversation with a server can begin.
    let mut held = Vec::new();
    for _ in 0..4 {
        let conversations = &scene.credentials.conversations;
        let conversation = conversations.begin(Sharer::Local, Instant::now() + LIMIT);
        held.push(conversation.await.unwrap());
    }
    let (mut connected, client) = LoginConnection::pair();
    let mut context = connected.context(&scene);
    let nonce = scene.nonces.nonce();
    let (conversation, payload) = ClientConversation::start(SHA_256, "u", &nonce);
    let start = rawdoc! {
        "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": binary(&payload),
    };
    let started = SaslConversation::start(&mut context, &start, SOURCE).await;
    let (login, challenge) = started.ok().unwrap();
    let server_first = challenge.get_binary("payload").unwrap().bytes;
    let response = conversation.respond_with_password(server_first, "secret");
    let (_, proof, _) = response.unwrap();
    let proof = rawdoc! { "saslContinue": 1, "conversationId": 1, "payload": binary(&proof) };
    drop(client);
    let proceeding = login.proceed(&mut context, &proof, SOURCE, None);
    assert!(matches!(proceeding.await.err(), Some(LoginEnd::Gone)));
}
