//! Fixtures that many tests share: a server whose logins are fast, and short helper functions.

use std::net::{IpAddr, SocketAddr};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use seawall_tests::{
    mongod::{Administrator, NewUser, Options, RunCommand, Standalone, create_user, unique_name},
    raw::{Login, Outcome, RawClient, RawReply},
    recorder::Recorder,
    seawall::{self, Seawall},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::OnceCell,
};

/// A standalone with authentication. The SCRAM iteration count of its users is nearly the smallest
/// that drivers accept, so logins are fast.
pub(crate) async fn server() -> &'static Standalone {
    static SHARED: OnceCell<Standalone> = OnceCell::const_new();
    let start = || async {
        let names = ["scramIterationCount", "scramSHA256IterationCount"];
        let parameters = names.map(|name| (name.to_owned(), "5000".to_owned()));
        let options = Options {
            parameters: parameters.into(),
            ..Options::with_auth()
        };
        Standalone::start(options).await.unwrap()
    };
    SHARED.get_or_init(start).await
}

/// The root user of [`server`].
pub(crate) async fn root() -> Administrator {
    server().await.administrator().await.unwrap()
}

/// Creates a user of [`server`] with a new name and with read and write access to a database of
/// that name.
pub(crate) async fn writer() -> NewUser {
    let name = unique_name("user");
    let user = NewUser::new("admin", &name, "secret").role("readWrite", &name);
    create_user(&root().await, &user).await.unwrap();
    user
}

/// Starts Seawall in front of [`server`], with this additional configuration.
pub(crate) async fn seawall(toml: &str) -> Seawall {
    seawall_at(&server().await.uri(), toml).await
}

/// Starts Seawall in front of [`server`]. The recorder forwards the bytes between Seawall and the
/// server, and records them.
pub(crate) async fn recorded(toml: &str) -> (Seawall, Recorder) {
    let recorder = Recorder::start(server().await.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    (seawall_at(&uri, toml).await, recorder)
}

/// Starts Seawall in front of the deployment at `uri`. Seawall listens on all addresses.
pub(crate) async fn seawall_at(uri: &str, toml: &str) -> Seawall {
    let options = seawall::Options {
        toml: toml.to_owned(),
        listen: Some("0.0.0.0:0".to_owned()),
    };
    Seawall::start_with(uri, options).await
}

/// A client of Seawall with the source address 127.0.0.1.
pub(crate) async fn connect(seawall: &Seawall) -> RawClient {
    connect_from(seawall, [127, 0, 0, 1]).await
}

/// A client of Seawall with this source address.
pub(crate) async fn connect_from(seawall: &Seawall, source: [u8; 4]) -> RawClient {
    RawClient::new(connection_from(seawall, source).await)
}

/// A connection to Seawall with this source address.
pub(crate) async fn connection_from(seawall: &Seawall, source: [u8; 4]) -> TcpStream {
    let listen: SocketAddr = seawall.address().parse().unwrap();
    connection_to(listen.port(), source).await
}

/// A connection from this source address to a port of this machine.
pub(crate) async fn connection_to(port: u16, source: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(SocketAddr::new(IpAddr::from(source), 0))
        .unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let stream = socket.connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A client of Seawall that has sent a login, and the outcome of the login.
pub(crate) async fn log_in(seawall: &Seawall, login: &Login) -> (RawClient, Outcome) {
    let mut client = connect(seawall).await;
    let outcome = client.login(login).await.unwrap();
    (client, outcome)
}

/// A client of Seawall that has logged in.
pub(crate) async fn logged_in(seawall: &Seawall, login: &Login) -> RawClient {
    let (client, outcome) = log_in(seawall, login).await;
    assert!(outcome.is_authenticated(), "{login:?}: {outcome:?}");
    client
}

/// Sends a find to a database.
pub(crate) async fn find(client: &mut RawClient, db: &str) -> RawReply {
    client.command(db, doc! { "find": "c" }).await.unwrap()
}

/// Sends an insert to a database.
pub(crate) async fn insert(client: &mut RawClient, db: &str) -> RawReply {
    let command = doc! { "insert": "c", "documents": [{ "a": 1 }] };
    client.command(db, command).await.unwrap()
}

/// A binary value, for example the payload of a login.
pub(crate) fn binary(text: &str) -> Binary {
    let bytes = text.as_bytes().to_vec();
    let subtype = BinarySubtype::Generic;
    Binary { subtype, bytes }
}

/// Changes a user with `updateUser`.
pub(crate) async fn update_user(root: &impl RunCommand, user: &NewUser, change: Document) {
    let mut command = doc! { "updateUser": &user.name };
    command.extend(change);
    root.run(&user.db, command).await.unwrap();
}

/// A login of `user` with `password` instead of the password in `user`.
pub(crate) fn with_password(user: &NewUser, password: &str) -> Login {
    Login {
        password: password.to_owned(),
        ..user.login()
    }
}

/// The commands with this name that reached the server, each with the index of its connection.
pub(crate) fn commands_named(recorder: &Recorder, name: &str) -> Vec<(usize, Document)> {
    let connections = recorder.connections().into_iter().enumerate();
    connections
        .flat_map(|(index, connection)| {
            let commands = connection.commands().into_iter();
            commands.map(move |command| (index, command))
        })
        .filter(|(_, command)| command.keys().next().is_some_and(|first| first == name))
        .collect()
}

/// The `saslStart` commands of this user that reached the server, each with the index of its
/// connection.
pub(crate) fn first_logins(recorder: &Recorder, user: &str) -> Vec<(usize, Document)> {
    let name = format!("n,,n={user},").into_bytes();
    let mut starts = commands_named(recorder, "saslStart");
    starts.retain(|(_, start)| {
        start
            .get_binary_generic("payload")
            .unwrap()
            .starts_with(&name)
    });
    starts
}
