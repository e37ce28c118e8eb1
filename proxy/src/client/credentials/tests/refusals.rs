//! Tests of the time at which the reply to a refused login is sent.

use std::time::Duration;

use bson::{Binary, RawDocumentBuf, rawdoc, spec::BinarySubtype};
use tokio::{
    net::UnixStream,
    time::{Instant, pause},
};

use super::{CredentialMode, LIMIT, SHA_256, SOURCE, Scene};
use crate::{
    client::{
        client_end::ClientEnd,
        login::{Login, LoginContext, LoginEnd},
    },
    limits::{LimitNumbers, Limits, OperationPermits},
    observe::Recorder,
};
use seawall_auth::ClientConversation;
use seawall_command::AUTHENTICATION_FAILED;
use seawall_transport::{MessageReader, Sharer, Stream};

fn sasl_start(scene: &Scene, mechanism: &str) -> RawDocumentBuf {
    let (_, payload) = ClientConversation::start(SHA_256, "nobody", &scene.nonces.nonce());
    let payload = Binary {
        subtype: BinarySubtype::Generic,
        bytes: payload.to_vec(),
    };
    rawdoc! { "saslStart": 1, "mechanism": mechanism, "payload": payload }
}

#[tokio::test]
async fn a_login_is_refused_50_ms_after_its_beginning() {
    let scene = Scene::with(CredentialMode::Users, Vec::new()).await;
    let limits = Limits::new(LimitNumbers::of_each(1), OperationPermits::new(1));
    let recorder = Recorder::without_shapes();
    let (stream, client) = UnixStream::pair().unwrap();
    let (mut stream, mut reader) = (Stream::Unix(stream), MessageReader::new(Sharer::Local));
    let mut context = LoginContext {
        credentials: &scene.credentials,
        recorder: &recorder,
        nonces: &scene.nonces,
        limits: &limits,
        peer: None,
        client: ClientEnd {
            stream: &mut stream,
            reader: &mut reader,
            write_idle: LIMIT,
            is_awaiting: true,
        },
    };
    pause();
    let start = sasl_start(&scene, "SCRAM-SHA-256");
    let began = Instant::now();
    let end = Login::start(&mut context, &start, SOURCE).await.err();
    assert!(matches!(end, Some(LoginEnd::Refused(error)) if error.code == AUTHENTICATION_FAILED));
    // Timers have a resolution of a millisecond.
    let elapsed = began.elapsed().as_millis();
    assert!((50..=51).contains(&elapsed), "{elapsed} ms");
    // A refusal that does not depend on the user is sent at once.
    let start = sasl_start(&scene, "PLAIN");
    let began = Instant::now();
    let end = Login::start(&mut context, &start, SOURCE).await.err();
    assert!(matches!(end, Some(LoginEnd::Refused(_))));
    assert_eq!(began.elapsed(), Duration::ZERO);
    // A client that has left gets no reply.
    drop(client);
    let start = sasl_start(&scene, "SCRAM-SHA-256");
    let end = Login::start(&mut context, &start, SOURCE).await.err();
    assert!(matches!(end, Some(LoginEnd::Gone)));
}
