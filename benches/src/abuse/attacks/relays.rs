//! Two attacks. The first sends commands before a login. In relay mode (`deployment.mode =
//! "relay"`), Seawall must not forward these commands. The second sends requests to the admin
//! address. A browser would send such requests if it showed a web page of an attacker.

use bson::{Document, doc};
use seawall_tests::raw::{OpMsg, OpQuery, RawError};
use seawall_wire::{Compressor, deflate};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::abuse::arena::{Arena, Ending};

const X509: &str = "MONGODB-X509";

pub(super) async fn guard(arena: Arena) {
    arena.attempts(100, smuggle).await;
}

fn create_user() -> Document {
    doc! {"createUser": "eve", "pwd": "x", "roles": ["root"]}
}

/// Sends a command before a login, in one of eight ways. Seawall, in relay mode, must not forward
/// the command to the server.
async fn smuggle(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let mut client = arena.connect().await?;
    let x509 = doc! {"authenticate": 1, "mechanism": X509};
    let behind_options = |command: Document| {
        let mut query = doc! {"$queryOptions": {}};
        query.extend(command);
        query
    };
    match number % 8 {
        0 => client.send(&in_admin(create_user())).await?,
        1 => client.send_query(&OpQuery::new(create_user())).await?,
        2 => {
            client
                .send_query(&OpQuery::new(behind_options(create_user())))
                .await?
        }
        3 => client.send_query(&external(behind_options(x509))).await?,
        4 => {
            client
                .send_query(&OpQuery::new(
                    doc! {"$query": behind_options(create_user())},
                ))
                .await?
        }
        5 => {
            client
                .send(&in_admin(
                    doc! {"hello": 1, "speculativeAuthenticate": x509},
                ))
                .await?
        }
        6 => client.send_query(&external(x509)).await?,
        _ => {
            let message = in_admin(create_user()).to_bytes();
            let compressed = deflate(&message, Compressor::Snappy);
            client
                .send_bytes(&compressed.map_err(RawError::Io)?)
                .await?;
            0
        }
    };
    let ending = Ending::from(client.read_reply().await);
    Ok(match ending {
        Ending::Replied => Ending::Breach("a command passed before a login"),
        other => other,
    })
}

fn in_admin(mut command: Document) -> OpMsg {
    command.insert("$db", "admin");
    OpMsg::new(command)
}

fn external(query: Document) -> OpQuery {
    OpQuery {
        collection: "$external.$cmd".to_owned(),
        ..OpQuery::new(query)
    }
}

pub(super) async fn cross_site(arena: Arena) {
    arena.attempts(100, browse).await;
}

/// Sends a request to the admin address as a browser does if a web page of an attacker's site makes
/// the request.
async fn browse(arena: Arena, number: u32) -> Result<Ending, RawError> {
    let (method, path) = match number % 3 {
        0 => ("POST", "/api/v1/drain"),
        1 => ("GET", "/api/v1/clients"),
        _ => ("GET", "/metrics"),
    };
    let host = match number % 2 {
        0 => arena.admin.to_string(),
        // A host name of the attacker, which resolves to 127.0.0.1 (DNS rebinding).
        _ => "rebound.example".to_owned(),
    };
    let origin = "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n";
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{origin}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let mut stream = TcpStream::connect(arena.admin).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    let status = page
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok(match status {
        Some(200) => Ending::Breach("the admin address served a request from another site's page"),
        Some(status) => Ending::Refused(status),
        None => Ending::Closed,
    })
}
