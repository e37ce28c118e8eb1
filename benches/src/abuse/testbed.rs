//! A mongod with users, and a Seawall process in front of it.

use std::net::{Ipv4Addr, SocketAddr};

use bson::{Document, doc};
use seawall_tests::{
    mongod::{NewUser, Options, Standalone, create_user},
    raw::{Login, Mechanism, RawClient, RawError},
};
use tokio::net::TcpSocket;

use crate::insight::{Plan, seawall::Seawall};

/// The password of every user.
pub const PASSWORD: &str = "only-a-bench";

/// The victim whose name the attackers know. She logs in from [`Ipv4Addr::LOCALHOST`].
pub const ALICE: &str = "alice";

/// The second victim. He logs in from [`BOB_ADDRESS`].
pub const BOB: &str = "bob";

/// Source address of the second victim.
pub const BOB_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// The attackers' own user.
pub const MALLORY: &str = "mallory";

/// Source address of every attacker.
pub const ATTACKER_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A user whose password the attack `outdated-keys` changes repeatedly.
pub const ROTATING: &str = "rotating";

/// A user with rights on the database of [`ALICE`]. No client has an address from which this user
/// may log in.
pub const RESTRICTED: &str = "restricted-user";

/// The configuration with which Seawall reads no users from the server, and knows only the users in
/// `auth.users`. [`AbuseTestbed::seawall`] appends these users: [`RESTRICTED`] with its keys, all
/// others with their passwords.
pub const CONFIGURED_USERS: &str = "auth.credentials = \"users\"\n";

/// Number of small documents of each victim.
pub const DOCUMENTS: i32 = 100;

/// Size of a victim's large document, and of the command that finds it, in bytes.
pub const LARGE_BYTES: usize = 200 << 10;

/// Sizes in bytes of the two documents that slow readers request. Their `_id`s are 1 and 2.
pub const REPLY_BYTES: [usize; 2] = [1 << 20, 15 << 20];

/// The users' logins. Clones share derived keys.
#[derive(Clone, Debug)]
pub struct Users {
    /// The login of [`ALICE`].
    pub alice: Login,
    /// The login of [`BOB`].
    pub bob: Login,
    /// The login of [`MALLORY`].
    pub mallory: Login,
    /// Victims that are unknown to Seawall until they log in during the measurement.
    pub newcomers: Vec<Login>,
    /// Users whose logins attackers begin and do not continue.
    pub sleepers: Vec<Login>,
    /// The login of [`RESTRICTED`].
    pub restricted: Login,
}

/// The server with its users. Starts Seawall processes in front of it.
#[derive(Debug)]
pub struct AbuseTestbed {
    server: Standalone,
    /// The users of the server.
    pub users: Users,
    /// All users as entries of `auth.users` in TOML.
    configured: String,
    plan: Plan,
}

impl AbuseTestbed {
    /// Starts a server and creates its users and documents.
    ///
    /// # Panics
    /// If the server does not start or refuses a command.
    pub async fn start(plan: Plan) -> Self {
        // Few iterations, because the bench measures Seawall, not PBKDF2. The number is nearly the
        // smallest that drivers accept.
        let names = ["scramIterationCount", "scramSHA256IterationCount"];
        let options = Options {
            parameters: names
                .map(|name| (name.to_owned(), "5000".to_owned()))
                .into(),
            ..Options::with_auth()
        };
        let server = Standalone::start(options).await.expect("a mongod starts");
        let root = server.client().expect("the server accepts connections");
        let names =
            |prefix: &str, count: u32| (0..count).map(|n| format!("{prefix}-{n}")).collect();
        let newcomers: Vec<String> = names("newcomer", plan.either(64, 16));
        let sleepers: Vec<String> = names("sleeper", plan.either(25, 5));
        let main = [ALICE, BOB, MALLORY, ROTATING].map(str::to_owned);
        for name in main.iter().chain(&newcomers).chain(&sleepers) {
            let db = if name.contains('-') {
                ALICE
            } else {
                name.as_str()
            };
            let mut user = NewUser::new("admin", name, PASSWORD).role("readWrite", db);
            if name != MALLORY {
                user = user.mechanisms(&[Mechanism::ScramSha256]);
            }
            create_user(&root, &user)
                .await
                .expect("the user can be created");
        }
        let restricted = NewUser::new("admin", RESTRICTED, PASSWORD)
            .role("readWrite", ALICE)
            .mechanisms(&[Mechanism::ScramSha256])
            .restriction(doc! {"clientSource": ["192.0.2.0/24"]});
        create_user(&root, &restricted)
            .await
            .expect("the user can be created");
        let with_passwords = main.iter().chain(&newcomers).chain(&sleepers);
        let mut configured: String = with_passwords
            .map(|name| format!("[[auth.users]]\nname = {name:?}\npassword = {PASSWORD:?}\n"))
            .collect();
        configured += &with_keys(&root, RESTRICTED).await;
        for name in [ALICE, BOB, MALLORY] {
            insert_documents(&root.database(name), name == MALLORY).await;
        }
        let users = Users {
            alice: login(ALICE),
            bob: login(BOB),
            mallory: login(MALLORY),
            newcomers: newcomers.iter().map(|name| login(name)).collect(),
            sleepers: sleepers.iter().map(|name| login(name)).collect(),
            restricted: login(RESTRICTED),
        };
        derive_keys(&server, &users).await;
        Self {
            server,
            users,
            configured,
            plan,
        }
    }

    /// Starts Seawall in front of the server, with additional configuration in TOML. If `toml` is
    /// [`CONFIGURED_USERS`], the configuration also contains all users.
    pub async fn seawall(&self, toml: &str) -> Seawall {
        let users = match toml {
            CONFIGURED_USERS => self.configured.as_str(),
            _ => "",
        };
        let toml = format!("{toml}{users}");
        let seawall = Seawall::start(&self.plan, &self.server.uri(), &toml).await;
        seawall.wait_for_credential_source().await;
        seawall
    }

    /// The server's own address.
    pub fn server(&self) -> SocketAddr {
        self.server.address()
    }
}

/// The login of the user with this name, in the database `admin`.
pub fn login(name: &str) -> Login {
    Login::new("admin", name, PASSWORD)
}

/// Returns a user with its SCRAM-SHA-256 keys, as an entry of `auth.users` in TOML.
async fn with_keys(root: &mongodb::Client, name: &str) -> String {
    let user = doc! {"user": name, "db": "admin"};
    let command = doc! {"usersInfo": user, "showCredentials": true};
    let reply = root.database("admin").run_command(command).await;
    let reply = reply.expect("the server lists the user");
    let users = reply.get_array("users").expect("the reply has users");
    let user = users.first().and_then(|user| user.as_document());
    let keys = user
        .and_then(|user| user.get_document("credentials").ok())
        .and_then(|keys| keys.get_document(Mechanism::ScramSha256.name()).ok())
        .expect("the user has SHA-256 keys");
    let text = |field| keys.get_str(field).expect("the keys have this field");
    let iterations = keys.get_i32("iterationCount");
    format!(
        "[[auth.users]]\nname = {name:?}\n[auth.users.scram_sha_256]\nsalt = {:?}\n\
         iterations = {}\nstored_key = {:?}\nserver_key = {:?}\n",
        text("salt"),
        iterations.expect("the keys have an iteration count"),
        text("storedKey"),
        text("serverKey"),
    )
}

async fn insert_documents(database: &mongodb::Database, has_replies: bool) {
    let small = (0..DOCUMENTS).map(|n| doc! {"_id": n, "pad": "x".repeat(100)});
    let small_collection = database.collection::<Document>("small");
    let inserted = small_collection.insert_many(small).await;
    inserted.expect("documents can be inserted");
    let mut large = vec![(0, LARGE_BYTES)];
    if has_replies {
        large.extend((1..).zip(REPLY_BYTES));
    }
    for (id, bytes) in large {
        let pad = noise(bytes);
        let large_collection = database.collection::<Document>("large");
        let inserted = large_collection
            .insert_one(doc! {"_id": id, "pad": pad})
            .await;
        inserted.expect("a document can be inserted");
    }
}

/// Text that compresses badly. It is the same in each run.
fn noise(bytes: usize) -> String {
    let mut state = 1_u64;
    let letters = std::iter::repeat_with(|| {
        // Knuth's MMIX generator. Only the high bits are random enough.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let letter = u8::try_from(state >> 57).unwrap_or_default();
        char::from(letter.max(b' '))
    });
    letters.take(bytes).collect()
}

/// Logs in once at the server with each user that must log in successfully, so that their keys are
/// derived before the measurement.
async fn derive_keys(server: &Standalone, users: &Users) {
    let named = [&users.alice, &users.bob, &users.mallory];
    for login in named.into_iter().chain(&users.newcomers) {
        let mut client = server
            .raw_client()
            .await
            .expect("the server accepts connections");
        let outcome = client.login(login).await.expect("the server replies");
        assert!(outcome.is_authenticated(), "{}: {outcome:?}", login.user);
    }
}

/// Connects from the loopback address `source`. If `receive_buffer_bytes` is `None`, the receive
/// buffer has its default size.
///
/// # Errors
/// If the connection is refused, or no port is free.
pub async fn connect_from(
    source: Ipv4Addr,
    target: SocketAddr,
    receive_buffer_bytes: Option<u32>,
) -> Result<RawClient, RawError> {
    let socket = TcpSocket::new_v4()?;
    socket.set_nodelay(true)?;
    if let Some(bytes) = receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    // Close with a reset, because otherwise thousands of ports stay in TIME_WAIT and cannot be
    // reused.
    socket.set_zero_linger()?;
    socket.bind(SocketAddr::from((source, 0)))?;
    Ok(RawClient::new(socket.connect(target).await?))
}
