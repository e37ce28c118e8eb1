//! Attacks with logins that fail, or that end late or never.

use std::time::Duration;

use bson::{Binary, Bson, Document, RawDocumentBuf, doc, rawdoc, spec::BinarySubtype};
use seawall_tests::{
    mongod::{ROOT, ROOT_PASSWORD},
    raw::{Login, Mechanism, OpMsg, RawClient, RawError, Start},
};
use seawall_wire::encode_request;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::abuse::{
    arena::{Arena, Ending},
    testbed::{ALICE, PASSWORD, ROTATING, login},
};

const SHA_256: &str = "SCRAM-SHA-256";

/// A password that no user has.
const WRONG: &str = "wrong";

fn payload(text: &str) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.into(),
    }
}

/// A `saslStart` command in the database `admin`, as a message.
fn start(user: &str, mechanism: &str) -> OpMsg {
    let payload = payload(&format!("n,,n={user},r=0123456789abcdefghij"));
    OpMsg::new(doc! {"saslStart": 1, "mechanism": mechanism, "payload": payload, "$db": "admin"})
}

/// Runs a find that only [`ALICE`] may run. It is a breach if the find succeeds.
async fn read_as_alice(client: &mut RawClient) -> Ending {
    match Ending::from(client.command(ALICE, doc! {"find": "small"}).await) {
        Ending::Replied => Ending::Breach("a victim's documents were read"),
        other => other,
    }
}

/// Time for which an attacker waits for each reply. It is longer than the time for which Seawall
/// waits for the client's second message when a user logs in for the first time.
const UNFINISHED_FOR: Duration = Duration::from_secs(6);

pub(super) async fn unfinished(arena: Arena) {
    let users = arena.users.sleepers.clone();
    begin_repeatedly(arena, &users).await;
}

pub(super) async fn claimed(arena: Arena) {
    // The attack is on first logins. So it uses only the names of victims whose first login is
    // during the attack, or shortly before it.
    let (skipped, claimed) = arena.either((8, 16), (0, 4));
    let newcomers = arena.users.newcomers.iter().skip(skipped).take(claimed);
    let users: Vec<Login> = newcomers.cloned().collect();
    begin_repeatedly(arena, &users).await;
}

async fn begin_repeatedly(arena: Arena, users: &[Login]) {
    arena.begin();
    let mut connections = JoinSet::new();
    let count = arena.either(100, 20);
    for user in users.iter().cycle().take(count) {
        let (arena, user) = (arena.clone(), user.user.clone());
        connections.spawn(async move {
            loop {
                arena.count_attempt();
                let ending = begin_only(&arena, &user).await;
                arena.count_ending(ending.unwrap_or(Ending::Closed));
            }
        });
    }
    arena.wait_for_end().await;
    for _ in 0..connections.len() {
        arena.count_ending(Ending::Held);
    }
}

async fn begin_only(arena: &Arena, user: &str) -> Result<Ending, RawError> {
    let mut client = arena.connect().await?;
    client.send(&start(user, SHA_256)).await?;
    // The first read ends when Seawall sends the challenge. It also ends when Seawall closes the
    // connection to make room for another login.
    client.set_limit(UNFINISHED_FOR);
    drop(client.read_message().await?);
    Ok(match timeout(UNFINISHED_FOR, client.read_message()).await {
        Err(_) | Ok(Err(RawError::TimedOut { .. })) => Ending::Held,
        Ok(Ok(_)) => Ending::Replied,
        Ok(Err(_)) => Ending::Closed,
    })
}

/// Time between two password changes.
const ROTATION: Duration = Duration::from_millis(200);

pub(super) async fn outdated(arena: Arena) {
    let mut root = RawClient::connect(arena.server)
        .await
        .expect("the server accepts connections");
    let outcome = root.login(&Login::new("admin", ROOT, ROOT_PASSWORD)).await;
    assert!(
        outcome.expect("the server replies").is_authenticated(),
        "root logs in"
    );
    let change = async |root: &mut RawClient, number: u32| {
        let command = doc! {"updateUser": ROTATING, "pwd": format!("{PASSWORD}-{number}")};
        let reply = root
            .command("admin", command)
            .await
            .expect("the server replies");
        assert!(reply.is_ok(), "{reply:?}");
    };
    change(&mut root, 0).await;
    let outdated = Login::new("admin", ROTATING, &format!("{PASSWORD}-0"));
    if !is_accepted(&arena, &outdated).await {
        arena.count_ending(Ending::NotBegun);
    }
    change(&mut root, 1).await;
    // Seawall may still use keys that it read less than a second ago, and so accept the outdated
    // password.
    let is_refused = async { while is_accepted(&arena, &outdated).await {} };
    let is_refused = timeout(Duration::from_secs(5), is_refused).await;
    is_refused.expect("a changed password takes effect");
    let attempts = arena.attempts(100, |arena, _| {
        let outdated = outdated.clone();
        async move {
            let mut client = arena.connect().await?;
            // Between the two messages, Seawall may get the keys of a new password. Even then, the
            // login must fail.
            let begun = client.begin_login(&outdated).await?;
            let outcome = client.finish_login(&begun).await?;
            Ok(match outcome.is_authenticated() {
                true => Ending::Breach("an outdated password was accepted"),
                false => Ending::Refused(outcome.code().unwrap_or_default()),
            })
        }
    });
    let rotate = async {
        for number in 2_u32.. {
            change(&mut root, number).await;
            sleep(ROTATION).await;
        }
    };
    tokio::select! {
        () = attempts => {}
        () = rotate => {}
    }
}

async fn is_accepted(arena: &Arena, login: &Login) -> bool {
    let outcome = async { arena.connect().await?.login(login).await };
    outcome
        .await
        .is_ok_and(|outcome| outcome.is_authenticated())
}

pub(super) async fn victims_name(arena: Arena) {
    let attempt = |arena: Arena, _: u32| async move {
        let mut client = arena.connect().await?;
        client.send(&start(ALICE, SHA_256)).await?;
        let challenge = client.read_reply().await?;
        if !challenge.is_ok() {
            return Ok(Ending::from(Ok(challenge)));
        }
        let nonce = challenge
            .body
            .get_binary_generic("payload")
            .map(Vec::as_slice);
        let nonce = String::from_utf8_lossy(nonce.unwrap_or_default()).into_owned();
        let nonce = nonce.split(',').next().unwrap_or_default();
        let proof = format!("c=biws,{nonce},p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
        let proof = doc! {"saslContinue": 1, "conversationId": 1, "payload": payload(&proof)};
        Ok(check_refused(Ending::from(
            client.command("admin", proof).await,
        )))
    };
    arena.attempts(200, attempt).await;
}

/// Reports a breach if the reply is not an error, because such a reply means that the login was
/// accepted.
fn check_refused(ending: Ending) -> Ending {
    match ending {
        Ending::Replied => Ending::Breach("a login without the right password was accepted"),
        other => other,
    }
}

pub(super) async fn long_names(arena: Arena) {
    const NAME_BYTES: usize = 15_000;
    const CONNECTIONS: u32 = 20;
    arena.begin();
    let mut connections = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let arena = arena.clone();
        connections.spawn(async move {
            let mut client = arena.connect().await?;
            let mut pace = arena.pace(2_000 / CONNECTIONS);
            let mut number = 0;
            while pace.next().await {
                number += 1;
                let name = format!("admin.{connection}-{number:0>NAME_BYTES$}");
                let hello = rawdoc! {"hello": 1, "saslSupportedMechs": name, "$db": "admin"};
                arena.count_attempt();
                client
                    .send_bytes(&encode_request(number, hello.as_bytes()))
                    .await?;
                arena.count_ending(Ending::from(client.read_reply().await));
            }
            Ok::<_, RawError>(())
        });
    }
    while let Some(ended) = connections.join_next().await {
        if !matches!(ended, Ok(Ok(()))) {
            arena.count_ending(Ending::Closed);
        }
    }
}

pub(super) async fn pipelined(arena: Arena) {
    arena.attempts(100, pipeline).await;
}

/// Sends finds that only a victim may run, between and after the messages of a login that will
/// fail. All messages are sent in one write.
async fn pipeline(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let mut client = arena.connect().await?;
    let find = OpMsg::new(doc! {"find": "small", "$db": ALICE});
    let proof = doc! {"saslContinue": 1, "conversationId": 1, "payload": payload("c=biws,r=x,p=AAAA"), "$db": "admin"};
    let user = match number % 2 {
        0 => ALICE.to_owned(),
        // Seawall must look up this unknown user at the server, so this login takes longer.
        _ => format!("unknown-{number}"),
    };
    let parts = [
        start(&user, SHA_256),
        find.clone(),
        OpMsg::new(proof),
        find.clone(),
        find,
    ];
    let bytes: Vec<u8> = parts.iter().flat_map(OpMsg::to_bytes).collect();
    client.send_bytes(&bytes).await?;
    let mut last = Ending::Closed;
    for part in 0..parts.len() {
        last = Ending::from(client.read_reply().await);
        if part > 0 && last == Ending::Replied {
            return Ok(Ending::Breach(
                "a command was served before the login succeeded",
            ));
        }
        if last == Ending::Closed {
            break;
        }
    }
    Ok(last)
}

pub(super) async fn replayed(arena: Arena) {
    arena.attempts(50, replay).await;
}

/// Sends the last message of an accepted login again, on the same and on another connection.
async fn replay(arena: Arena, _: u32) -> Result<Ending, RawError> {
    let mallory = &arena.users.mallory;
    let mut own = arena.connect().await?;
    let begun = own.begin_login(mallory).await?;
    if !own.finish_login(&begun).await?.is_authenticated() {
        return Ok(Ending::NotBegun);
    }
    if own.finish_login(&begun).await?.is_authenticated() {
        return Ok(Ending::Breach("a login was replayed on its connection"));
    }
    let mut other = arena.connect().await?;
    drop(other.begin_login(mallory).await?);
    let outcome = other.finish_login(&begun).await?;
    Ok(match outcome.is_authenticated() {
        true => Ending::Breach("a login was replayed on another connection"),
        false => Ending::Refused(outcome.code().unwrap_or_default()),
    })
}

pub(super) async fn altered(arena: Arena) {
    arena.attempts(100, alter).await;
}

/// Changes the client's last message of a valid login. After the change, the proof in this message
/// does not match the rest of the message, or is malformed, or is missing.
async fn alter(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let mut client = arena.connect().await?;
    let begun = client.begin_login(&arena.users.mallory).await?;
    let begun = begun.altered(|message| match number % 6 {
        0 => message.replacen("c=biws", "c=eSws", 1),
        1 => message.replacen("r=", "r=x", 1),
        2 => message.replacen(",p=", "x,p=", 1),
        3 => message.replacen(",p=", ",m=1,p=", 1),
        4 => message.replacen("p=", "p=A", 1),
        _ => message.split(",p=").next().unwrap_or_default().to_owned(),
    });
    let outcome = client.finish_login(&begun).await?;
    if outcome.is_authenticated() || outcome.code().is_none() {
        return Ok(Ending::Breach("an altered message was accepted"));
    }
    Ok(Ending::Refused(outcome.code().unwrap_or_default()))
}

pub(super) async fn confused(arena: Arena) {
    // One login gives Seawall the keys of the attackers' user. So Seawall, and not a server,
    // verifies the proofs of the attempts below.
    drop(arena.logged_in().await);
    arena.attempts(100, confuse).await;
}

async fn confuse(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let mut client = arena.connect().await?;
    let mallory = &arena.users.mallory;
    let start = match number % 6 {
        0 | 1 => {
            // The conversation begins with one SCRAM mechanism, and the proof belongs to the other
            // mechanism.
            let (begun_by, proven_by) = match number % 2 {
                0 => (Mechanism::ScramSha1, Mechanism::ScramSha256),
                _ => (Mechanism::ScramSha256, Mechanism::ScramSha1),
            };
            let mut other = arena.connect().await?;
            let proven = other
                .begin_login(&mallory.clone().mechanism(proven_by))
                .await?;
            drop(
                client
                    .begin_login(&mallory.clone().mechanism(begun_by))
                    .await?,
            );
            let outcome = client.finish_login(&proven).await?;
            return Ok(match outcome.is_authenticated() {
                true => Ending::Breach("a proof of another mechanism was accepted"),
                false => Ending::Refused(outcome.code().unwrap_or_default()),
            });
        }
        2 => with_mechanism("MONGODB-X509".into()),
        3 => with_mechanism("PLAIN".into()),
        4 => with_mechanism(Bson::Int32(1)),
        _ => with_two_mechanisms(),
    };
    client
        .send_bytes(&encode_request(1, start.as_bytes()))
        .await?;
    let ending = Ending::from(client.read_reply().await);
    match read_as_alice(&mut client).await {
        Ending::Breach(what) => Ok(Ending::Breach(what)),
        _ => Ok(ending),
    }
}

/// A `saslStart` with a victim's user name and this mechanism.
fn with_mechanism(mechanism: Bson) -> RawDocumentBuf {
    let payload = payload(&format!("n,,n={ALICE},r=0123456789abcdefghij"));
    let start: Document =
        doc! {"saslStart": 1, "mechanism": mechanism, "payload": payload, "$db": "admin"};
    RawDocumentBuf::try_from(start).expect("the command can be encoded")
}

/// A `saslStart` with two mechanisms.
fn with_two_mechanisms() -> RawDocumentBuf {
    let payload = payload(&format!("n,,n={ALICE},r=0123456789abcdefghij"));
    rawdoc! {
        "saslStart": 1, "mechanism": "MONGODB-X509", "mechanism": SHA_256, "payload": payload, "$db": "admin",
    }
}

pub(super) async fn interleaved(arena: Arena) {
    arena.attempts(100, interleave).await;
}

/// Begins the attacker's login, begins a victim's login, and finishes the attacker's login. In
/// every second attempt, all three steps use the same connection. In the other attempts, the first
/// step uses one connection, and the last two steps use another connection.
async fn interleave(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let mallory = &arena.users.mallory;
    let mut wrong = login(ALICE);
    wrong.password = WRONG.to_owned();
    wrong.keys = arena.users.alice.keys.clone();
    let mut client = arena.connect().await?;
    let own = client.begin_login(mallory).await?;
    let mut finished_on = match number % 2 {
        0 => client,
        _ => {
            drop(client);
            arena.connect().await?
        }
    };
    drop(finished_on.begin_login(&wrong).await?);
    let outcome = finished_on.finish_login(&own).await?;
    if outcome.is_authenticated() {
        return Ok(Ending::Breach(
            "a login succeeded in the conversation of another login",
        ));
    }
    match read_as_alice(&mut finished_on).await {
        Ending::Breach(what) => Ok(Ending::Breach(what)),
        _ => Ok(Ending::Refused(outcome.code().unwrap_or_default())),
    }
}

pub(super) async fn restricted(arena: Arena) {
    arena.attempts(100, log_in_elsewhere).await;
}

/// Logs in with the right password from an address that the user's restrictions forbid.
async fn log_in_elsewhere(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let start = match number % 2 {
        0 => Start::Command,
        _ => Start::SpeculativeHello,
    };
    let login = arena.users.restricted.clone().start(start);
    let mut client = arena.connect().await?;
    let outcome = client.login(&login).await?;
    if outcome.is_authenticated() {
        return Ok(Ending::Breach(
            "a login from a forbidden address was accepted",
        ));
    }
    match read_as_alice(&mut client).await {
        Ending::Breach(what) => Ok(Ending::Breach(what)),
        _ => Ok(Ending::Refused(outcome.code().unwrap_or_default())),
    }
}

/// Number of SASL conversations that each attempt begins on one connection.
const CONVERSATIONS: usize = 200;

pub(super) async fn many_conversations(arena: Arena) {
    let attempt = |arena: Arena, number: u32| async move {
        let mut client = arena.connect().await?;
        let mechanisms = Mechanism::ALL.map(Mechanism::name).into_iter().cycle();
        let user = match number % 4 {
            0 => "unknown".to_owned(),
            _ => arena.users.mallory.user.clone(),
        };
        let starts = mechanisms
            .take(CONVERSATIONS)
            .map(|mechanism| start(&user, mechanism));
        let bytes: Vec<u8> = starts.flat_map(|start| start.to_bytes()).collect();
        client.send_bytes(&bytes).await?;
        let mut last = Ending::Closed;
        for _ in 0..CONVERSATIONS {
            last = Ending::from(client.read_reply().await);
        }
        Ok(last)
    };
    drop(arena.logged_in().await);
    arena.attempts(20, attempt).await;
}
