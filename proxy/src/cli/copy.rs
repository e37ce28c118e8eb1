//! `seawall load copy`: copies collections and replaces every value by its pseudonym.

use std::path::PathBuf;

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};
use clap::Args;
use futures_util::TryStreamExt as _;
use mongodb::{
    Client, Collection, Database,
    bson::{Document, doc, serialize_to_document},
    error::{Error as DriverError, ErrorKind},
    options::{ClientOptions, CreateCollectionOptions},
    results::{CollectionSpecification, CollectionType},
};
use seawall_command::reports_server_failure;
use seawall_console::{Exit, complain, print_line, say};
use seawall_load::{Address, Target};
use seawall_redact::{Mode, RedactError, Redactor};
use seawall_wire::{OpMsg, encode_request};

use super::{
    redaction::{KeyError, read_key},
    values::connection_string,
};
use crate::topology::DeploymentError;

/// Maximum number of documents in one batch, which is written with one `insert_many`.
const BATCH_DOCUMENTS: usize = 500;

/// Size in bytes at which a batch of documents is written, even if it has fewer than
/// [`BATCH_DOCUMENTS`] documents.
const BATCH_BYTES: usize = 8 << 20;

/// Databases that contain the data of the server itself, not the data of users.
const OWN_DATABASES: [&str; 3] = ["admin", "config", "local"];

#[derive(Debug, Args)]
pub(super) struct Copy {
    /// Connection string of the deployment to read, or @FILE for a file that contains it.
    #[arg(long, value_name = "URI", value_parser = connection_string)]
    from: String,
    /// Connection string of the deployment to write, or @FILE for a file that contains it. Its
    /// collections must be empty.
    #[arg(long, value_name = "URI", value_parser = connection_string)]
    to: String,
    /// File with the key of the pseudonyms. Use the key with which the capture is redacted.
    #[arg(long, value_name = "FILE")]
    redact_key: PathBuf,
    /// A database, or DATABASE.COLLECTION, to copy; may be repeated. Without this option, all
    /// databases of users are copied.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Allow a target that is not on this machine.
    #[arg(long)]
    yes_i_own_this: bool,
}

/// The reason why a copy ended early.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("{0}")]
    Uri(String),
    #[error("the target is not on this machine; use --yes-i-own-this to allow it")]
    NotLoopback,
    #[error(
        "the member {0} of the target's replica set is not on this machine; use --yes-i-own-this \
         to allow it, or directConnection=true to write only to the given server"
    )]
    RemoteMember(String),
    #[error("the collection {0} has documents in the target; it must be empty there")]
    NotEmpty(String),
    #[error("the collection {0} does not exist in the source deployment")]
    NoCollection(String),
    #[error("{namespace}: a document cannot be redacted: {error}")]
    Redact {
        namespace: String,
        error: RedactError,
    },
    #[error("{namespace}: the target may lose the index {index}: write concern error {code}")]
    WriteConcern {
        namespace: String,
        index: String,
        code: i32,
    },
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Bson(#[from] bson::error::Error),
}

impl CopyError {
    fn exit(&self) -> Exit {
        match self {
            Self::Key(_) | Self::Uri(_) | Self::NotLoopback | Self::NotEmpty(_) => Exit::Usage,
            Self::NoCollection(_) | Self::RemoteMember(_) => Exit::Usage,
            Self::Redact { .. } | Self::WriteConcern { .. } => Exit::Unavailable,
            Self::Driver(_) | Self::Bson(_) => Exit::Unavailable,
        }
    }
}

pub(super) async fn run(arguments: &Copy) -> Exit {
    tokio::select! {
        copied = copy(arguments) => match copied {
            Ok(exit) => exit,
            Err(error) => complain(&error.to_string(), error.exit()),
        },
        _ = tokio::signal::ctrl_c() => Exit::Interrupted,
    }
}

async fn copy(arguments: &Copy) -> Result<Exit, CopyError> {
    let redactor = Redactor::new(&read_key(&arguments.redact_key)?, Mode::Ordered);
    let target = Target::parse(&arguments.to).await;
    let target = target.map_err(|error| CopyError::Uri(error.to_string()))?;
    if !arguments.yes_i_own_this && !target.is_loopback().await {
        return Err(CopyError::NotLoopback);
    }
    let from = Client::with_options(options(&arguments.from).await?)?;
    let options = options(&arguments.to).await?;
    if !arguments.yes_i_own_this {
        check_members(&options).await?;
    }
    let to = Client::with_options(options)?;
    let selected = select(&from, &arguments.namespace).await?;
    check_empty(&to, &selected).await?;
    for (database, specification) in &selected {
        let copier = Copier {
            redactor: &redactor,
            from: from.database(database),
            to: to.database(database),
            namespace: format!("{database}.{}", specification.name),
        };
        copier.collection(specification).await?;
    }
    let summary = format!("copied collections: {}", selected.len());
    Ok(print_line(&summary))
}

async fn options(uri: &str) -> Result<ClientOptions, CopyError> {
    // If the connection string is invalid, the driver's message may contain the password.
    // `DeploymentError::Uri` hides this message.
    let parsed = ClientOptions::parse(uri).await;
    let mut options = parsed.map_err(|error| match *error.kind {
        ErrorKind::DnsResolve { .. } => CopyError::Driver(error),
        _ => CopyError::Uri(DeploymentError::Uri(Box::new(error)).to_string()),
    })?;
    options
        .app_name
        .get_or_insert_with(|| "seawall load copy".to_owned());
    Ok(options)
}

/// Fails if a member of the target's replica set is not on this machine. The driver replaces the
/// addresses in the connection string by the members of the set, and writes to the primary. So this
/// function asks each given server for the members, through a client that connects to no other
/// server.
async fn check_members(target: &ClientOptions) -> Result<(), CopyError> {
    if target.direct_connection == Some(true) || target.load_balanced == Some(true) {
        return Ok(());
    }
    for server in &target.hosts {
        let mut options = target.clone();
        options.hosts = vec![server.clone()];
        options.direct_connection = Some(true);
        let admin = Client::with_options(options)?.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await?;
        if let Some(member) = remote_member(&hello).await {
            return Err(CopyError::RemoteMember(member));
        }
    }
    Ok(())
}

/// Finds a member of a replica set that is not on this machine. `hello` is the reply of a member.
async fn remote_member(hello: &Document) -> Option<String> {
    for list in ["hosts", "passives"] {
        for member in hello.get_array(list).into_iter().flatten() {
            let member = member.as_str().unwrap_or_default().to_owned();
            if !Address::Tcp(member.clone()).is_loopback().await {
                return Some(member);
            }
        }
    }
    None
}

/// The collections to copy, each with its database. Views, time series and the collections
/// `system.*` are reported and skipped.
async fn select(
    from: &Client,
    namespaces: &[String],
) -> Result<Vec<(String, CollectionSpecification)>, CopyError> {
    let mut wanted: Vec<(String, Option<String>)> = Vec::new();
    for namespace in namespaces {
        wanted.push(match namespace.split_once('.') {
            Some((database, collection)) => (database.to_owned(), Some(collection.to_owned())),
            None => (namespace.clone(), None),
        });
    }
    if namespaces.is_empty() {
        let databases = from.list_database_names().await?;
        let of_users = databases
            .into_iter()
            .filter(|name| !OWN_DATABASES.contains(&name.as_str()));
        wanted.extend(of_users.map(|name| (name, None)));
    }
    let mut selected = Vec::new();
    for (database, collection) in wanted {
        let filter = collection.map_or_else(Document::new, |name| doc! { "name": name });
        let found = from
            .database(&database)
            .list_collections()
            .filter(filter.clone())
            .await?;
        let found: Vec<_> = found.try_collect().await?;
        if found.is_empty() && !namespaces.is_empty() {
            let name = filter.get_str("name").unwrap_or("*");
            return Err(CopyError::NoCollection(format!("{database}.{name}")));
        }
        for specification in found {
            // The options `--namespace` can select a collection twice, for example by its name and
            // by its database.
            let is_selected = |(other, known): &(String, CollectionSpecification)| {
                *other == database && known.name == specification.name
            };
            if selected.iter().any(is_selected) {
                continue;
            }
            match specification.collection_type {
                CollectionType::Collection if !specification.name.starts_with("system.") => {
                    selected.push((database.clone(), specification));
                }
                _ => say(&format!(
                    "{database}.{}: skipped (a view, time series or system collection)",
                    specification.name
                )),
            }
        }
    }
    Ok(selected)
}

/// Fails if a collection to copy has documents in the target. Called before the first collection is
/// copied, so that a refused copy changes nothing.
async fn check_empty(
    to: &Client,
    selected: &[(String, CollectionSpecification)],
) -> Result<(), CopyError> {
    for (database, specification) in selected {
        let name = &specification.name;
        let target = to.database(database).collection::<RawDocumentBuf>(name);
        if target.find_one(doc! {}).await?.is_some() {
            return Err(CopyError::NotEmpty(format!("{database}.{name}")));
        }
    }
    Ok(())
}

/// Copies one collection.
struct Copier<'a> {
    redactor: &'a Redactor,
    from: Database,
    to: Database,
    namespace: String,
}

impl Copier<'_> {
    async fn collection(&self, specification: &CollectionSpecification) -> Result<(), CopyError> {
        let name = specification.name.as_str();
        let target = self.to.collection::<RawDocumentBuf>(name);
        self.create(specification).await?;
        let documents = self.documents(name, &target).await?;
        let indexes = self.indexes(name).await?;
        say(&format!(
            "{}: {documents} documents, {indexes} indexes",
            self.namespace
        ));
        let lost = not_copied(&specification.options)?;
        if !lost.is_empty() {
            say(&format!(
                "{}: not copied: {}",
                self.namespace,
                lost.join(", ")
            ));
        }
        Ok(())
    }

    /// Creates the collection. It gets the collation and the clustered index of the original. If
    /// the original is capped, the copy is capped too, at the same number of documents and twice as
    /// large: pseudonyms of numbers need up to twice as many bytes, and a full capped collection
    /// would drop its oldest documents.
    async fn create(&self, specification: &CollectionSpecification) -> Result<(), CopyError> {
        let options = &specification.options;
        let mut create = self.to.create_collection(&specification.name);
        if let Some(collation) = options.collation.clone() {
            create = create.collation(collation);
        }
        if let Some(index) = options.clustered_index.clone() {
            create = create.clustered_index(index);
        }
        if let (Some(true), Some(size)) = (options.capped, options.size) {
            create = create.capped(true).size(size.saturating_mul(2));
        }
        if let Some(max) = options.max {
            create = create.max(max);
        }
        let created = create.await;
        // An existing collection is no error, because the caller has checked that it is empty.
        let exists = self
            .to
            .list_collection_names()
            .await?
            .contains(&specification.name);
        match created {
            Err(error) if !exists => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn documents(
        &self,
        name: &str,
        target: &Collection<RawDocumentBuf>,
    ) -> Result<u64, CopyError> {
        let source = self.from.collection::<RawDocumentBuf>(name);
        let mut cursor = source.find(doc! {}).await?;
        let (mut batch, mut batch_bytes, mut count) = (Vec::new(), 0, 0);
        loop {
            let next = cursor.try_next().await?;
            let is_end = next.is_none();
            if let Some(document) = next {
                let redacted = self.redacted(document.as_bytes())?;
                batch_bytes += redacted.as_bytes().len();
                batch.push(redacted);
            }
            let is_full = batch.len() >= BATCH_DOCUMENTS || batch_bytes >= BATCH_BYTES;
            if !batch.is_empty() && (is_full || is_end) {
                count += u64::try_from(batch.len()).unwrap_or(0);
                target.insert_many(batch.drain(..)).await?;
                batch_bytes = 0;
            }
            if is_end {
                return Ok(count);
            }
        }
    }

    fn redacted(&self, document: &[u8]) -> Result<RawDocumentBuf, CopyError> {
        let redacted = self.redactor.document(document);
        let redacted = redacted.map_err(|error| self.not_redacted(error))?;
        Ok(RawDocumentBuf::from_bytes(redacted)?)
    }

    fn not_redacted(&self, error: RedactError) -> CopyError {
        CopyError::Redact {
            namespace: self.namespace.clone(),
            error,
        }
    }

    /// Creates the indexes of the original collection. Values in partial index filters are replaced
    /// by pseudonyms. The server may refuse an index, for example a geospatial index, which cannot
    /// be built on pseudonyms. Such an index is reported and skipped. If an index cannot be created
    /// because the server or the network has failed, the copy ends.
    async fn indexes(&self, name: &str) -> Result<u64, CopyError> {
        let list = self.from.run_cursor_command(doc! { "listIndexes": name });
        let indexes: Vec<Document> = list.await?.try_collect().await?;
        let mut created = 0;
        for mut index in indexes {
            let index_name = index.get_str("name").unwrap_or_default().to_owned();
            // The index on `_id` and the clustered index were created with the collection.
            if index_name == "_id_" || index.get_bool("clustered").unwrap_or(false) {
                continue;
            }
            index.remove("ns");
            let command = self.create_index(name, &index)?;
            match self.to.run_raw_command(command).await {
                Ok(reply) => {
                    self.check_write_concern(&index_name, &reply)?;
                    created += 1;
                }
                Err(error) if is_refusal(&error) => say(&format!(
                    "{}: index {index_name} skipped: {error}",
                    self.namespace
                )),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(created)
    }

    /// Fails if the reply to `createIndexes` has a write concern error. The server has then created
    /// the index, but may have stepped down before the other members had it. For other writes, the
    /// driver checks this.
    fn check_write_concern(&self, index: &str, reply: &Document) -> Result<(), CopyError> {
        match reply.get_document("writeConcernError") {
            Ok(error) => Err(CopyError::WriteConcern {
                namespace: self.namespace.clone(),
                index: index.to_owned(),
                code: error.get_i32("code").unwrap_or(0),
            }),
            Err(_) => Ok(()),
        }
    }

    /// The command that creates an index. Values in the command are replaced by pseudonyms in the
    /// same way as values in the commands of a capture.
    fn create_index(&self, name: &str, index: &Document) -> Result<RawDocumentBuf, CopyError> {
        let mut indexes = RawArrayBuf::new();
        indexes.push(RawDocumentBuf::try_from(index)?);
        let command = rawdoc! { "createIndexes": name, "indexes": indexes };
        let message = self
            .redactor
            .command(&encode_request(0, command.as_bytes()));
        let message = message.map_err(|error| self.not_redacted(error))?;
        let parsed =
            OpMsg::parse(&message).map_err(|_| self.not_redacted(RedactError::Malformed))?;
        Ok(RawDocumentBuf::from_bytes(parsed.body.to_vec())?)
    }
}

/// True if the server refuses the command itself. False if the command failed because of the server
/// or the network, for example because the server is no longer the primary.
fn is_refusal(error: &DriverError) -> bool {
    matches!(&*error.kind, ErrorKind::Command(command) if !reports_server_failure(command.code))
}

/// The options of a collection that its copy does not have.
fn not_copied(options: &CreateCollectionOptions) -> Result<Vec<String>, CopyError> {
    let mut options = serialize_to_document(options)?;
    for copied in ["capped", "size", "max", "collation", "clusteredIndex"] {
        options.remove(copied);
    }
    Ok(options.keys().cloned().collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use bson::RawDocument;
    use mongodb::bson::{Bson, deserialize_from_document};
    use seawall_locks::Mutex;

    use super::*;
    use crate::scripted::{Response, ScriptedServer};

    #[tokio::test]
    async fn a_member_of_a_replica_set_on_another_machine_is_found() {
        for (hello, expected) in [
            (doc! { "msg": "isdbgrid" }, None),
            (doc! { "hosts": ["127.0.0.1:1", "[::1]:2"] }, None),
            (
                doc! { "hosts": ["127.0.0.1:1", "192.0.2.1:2"] },
                Some("192.0.2.1:2"),
            ),
            (
                doc! { "hosts": ["127.0.0.1:1"], "passives": ["192.0.2.1:3"] },
                Some("192.0.2.1:3"),
            ),
        ] {
            let found = remote_member(&hello).await;
            assert_eq!(found.as_deref(), expected, "{hello}");
        }
    }

    /// The reply of a standalone server to `hello`.
    fn hello() -> RawDocumentBuf {
        rawdoc! {
            "ok": 1,
            "helloOk": true,
            "isWritablePrimary": true,
            "maxBsonObjectSize": 16_777_216,
            "maxMessageSizeBytes": 48_000_000,
            "minWireVersion": 0,
            "maxWireVersion": 21,
        }
    }

    /// A reply with a cursor that has these documents.
    fn batch(documents: impl IntoIterator<Item = RawDocumentBuf>) -> RawDocumentBuf {
        let batch: RawArrayBuf = documents.into_iter().collect();
        rawdoc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "shop.orders", "firstBatch": batch } }
    }

    /// The reply to `listCollections` of a database with these collections.
    fn collections(names: &[&str]) -> RawDocumentBuf {
        batch(names.iter().map(|name| {
            rawdoc! {
                "name": *name,
                "type": "collection",
                "options": {},
                "info": { "readOnly": false },
            }
        }))
    }

    fn uri(server: &ScriptedServer) -> String {
        format!("mongodb://{}/", server.address())
    }

    async fn client(server: &ScriptedServer) -> Client {
        Client::with_options(ClientOptions::parse(uri(server)).await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn nothing_is_copied_if_one_of_the_collections_has_documents_in_the_target() {
        let original = |command: &RawDocument| {
            Response::Reply(match command.get("listCollections").unwrap() {
                Some(_) => collections(&["empty", "full"]),
                None => hello(),
            })
        };
        let from = ScriptedServer::start(move || original).await;
        let has_created = Arc::new(AtomicBool::new(false));
        let of_server = Arc::clone(&has_created);
        let to = ScriptedServer::start(move || {
            let has_created = Arc::clone(&of_server);
            move |command: &RawDocument| {
                if command.get_str("create").is_ok() {
                    has_created.store(true, Ordering::Relaxed);
                }
                Response::Reply(match command.get_str("find") {
                    Ok("full") => batch([rawdoc! { "_id": 1 }]),
                    Ok(_) => batch([]),
                    Err(_) => hello(),
                })
            }
        })
        .await;
        let arguments = Copy {
            from: uri(&from),
            to: uri(&to),
            redact_key: concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").into(),
            namespace: vec!["shop".to_owned()],
            yes_i_own_this: false,
        };
        match copy(&arguments).await {
            Err(CopyError::NotEmpty(namespace)) => assert_eq!(namespace, "shop.full"),
            other => panic!("{other:?}"),
        }
        assert!(!has_created.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_collection_that_is_named_twice_is_copied_once() {
        let script = |command: &RawDocument| {
            Response::Reply(match command.get("listCollections").unwrap() {
                Some(_) => collections(&["orders"]),
                None => hello(),
            })
        };
        let server = ScriptedServer::start(move || script).await;
        let namespaces = ["shop", "shop.orders", "crm"].map(str::to_owned);
        let selected = select(&client(&server).await, &namespaces).await.unwrap();
        let databases: Vec<_> = selected.iter().map(|(database, _)| database).collect();
        assert_eq!(databases, ["shop", "crm"]);
    }

    #[tokio::test]
    async fn a_copy_has_the_clustered_index_and_the_maximum_number_of_documents() {
        let created = Arc::new(Mutex::new(Document::new()));
        let of_server = Arc::clone(&created);
        let server = ScriptedServer::start(move || {
            let created = Arc::clone(&of_server);
            move |command: &RawDocument| {
                if command.get_str("create").is_ok() {
                    *created.lock() = Document::try_from(command).unwrap();
                }
                Response::Reply(match command.get("listCollections").unwrap() {
                    Some(_) => collections(&["orders"]),
                    None => hello(),
                })
            }
        })
        .await;
        let shop = client(&server).await.database("shop");
        let copier = Copier {
            redactor: &Redactor::new(b"a key with more than sixteen bytes", Mode::Ordered),
            from: shop.clone(),
            to: shop,
            namespace: "shop.orders".to_owned(),
        };
        let clustered = doc! { "key": { "_id": 1 }, "unique": true, "name": "by id", "v": 2 };
        for (options, field, expected) in [
            (
                doc! { "capped": true, "size": 4096, "max": 7 },
                "max",
                Bson::Int64(7),
            ),
            (
                doc! { "clusteredIndex": clustered.clone() },
                "clusteredIndex",
                Bson::Document(clustered),
            ),
        ] {
            let mut specification = CollectionSpecification::default();
            specification.name = "orders".to_owned();
            specification.options = deserialize_from_document(options).unwrap();
            copier.create(&specification).await.unwrap();
            assert_eq!(created.lock().get(field), Some(&expected));
        }
    }

    #[test]
    fn options_that_a_copy_does_not_have_are_named() {
        let options = doc! {
            "capped": true,
            "size": 4096,
            "max": 7,
            "collation": { "locale": "en" },
            "clusteredIndex": { "key": { "_id": 1 }, "unique": true },
            "changeStreamPreAndPostImages": { "enabled": true },
            "expireAfterSeconds": 60,
            "validator": { "a": 1 },
        };
        let mut lost = not_copied(&deserialize_from_document(options).unwrap()).unwrap();
        lost.sort();
        let expected = [
            "changeStreamPreAndPostImages",
            "expireAfterSeconds",
            "validator",
        ];
        assert_eq!(lost, expected);
    }

    /// Copies the index of a collection to a server that replies to `createIndexes` with `reply`.
    /// If `reply` is `None`, the server closes the connection. Returns the number of copied
    /// indexes.
    async fn copy_index(reply: Option<RawDocumentBuf>) -> Result<u64, CopyError> {
        let script = move || {
            let reply = reply.clone();
            move |command: &RawDocument| {
                if command.get_str("listIndexes").is_ok() {
                    return Response::Reply(rawdoc! { "ok": 1, "cursor": {
                        "id": 0_i64,
                        "ns": "shop.orders",
                        "firstBatch": [{ "v": 2, "key": { "a": 1 }, "name": "a_1" }],
                    } });
                }
                match command.get_str("createIndexes").is_ok() {
                    true => reply.clone().map_or(Response::Close, Response::Reply),
                    false => Response::Reply(hello()),
                }
            }
        };
        let server = ScriptedServer::start(script).await;
        let shop = client(&server).await.database("shop");
        let copier = Copier {
            redactor: &Redactor::new(b"a key with more than sixteen bytes", Mode::Ordered),
            from: shop.clone(),
            to: shop,
            namespace: "shop.orders".to_owned(),
        };
        copier.indexes("orders").await
    }

    /// 67 is `CannotCreateIndex`, 10107 `NotWritablePrimary` and 11602
    /// `InterruptedDueToReplStateChange`.
    #[tokio::test]
    async fn an_index_is_skipped_only_if_the_server_refuses_it() {
        let refusal = |code: i32| Some(rawdoc! { "ok": 0, "code": code });
        for (reply, expected) in [
            (refusal(67), Some(0)),
            (refusal(10_107), None),
            (refusal(11_602), None),
            (None, None),
        ] {
            let copied = copy_index(reply.clone()).await;
            assert_eq!(copied.ok(), expected, "{reply:?}");
        }
    }

    /// 189 is `PrimarySteppedDown`.
    #[tokio::test]
    async fn a_copy_ends_if_the_target_may_lose_an_index_that_it_has_created() {
        let created = copy_index(Some(rawdoc! { "ok": 1 })).await;
        assert_eq!(created.ok(), Some(1));
        let failed = rawdoc! { "ok": 1, "writeConcernError": { "code": 189 } };
        match copy_index(Some(failed)).await {
            Err(CopyError::WriteConcern { index, code, .. }) => {
                assert_eq!((&*index, code), ("a_1", 189));
            }
            other => panic!("{other:?}"),
        }
    }

    /// The given server is a secondary, and the primary is not reachable.
    #[tokio::test]
    async fn members_on_other_machines_are_found_without_a_connection_to_them() {
        let hello = |_: &RawDocument| {
            Response::Reply(rawdoc! {
                "ok": 1,
                "helloOk": true,
                "isWritablePrimary": false,
                "secondary": true,
                "setName": "rs",
                "hosts": ["127.0.0.1:1", "192.0.2.1:27017"],
                "primary": "192.0.2.1:27017",
                "maxBsonObjectSize": 16_777_216,
                "maxMessageSizeBytes": 48_000_000,
                "minWireVersion": 0,
                "maxWireVersion": 21,
            })
        };
        let server = ScriptedServer::start(move || hello).await;
        let uri = format!("mongodb://{}/", server.address());
        let target = ClientOptions::parse(&uri).await.unwrap();
        match check_members(&target).await {
            Err(CopyError::RemoteMember(member)) => assert_eq!(member, "192.0.2.1:27017"),
            other => panic!("{other:?}"),
        }
    }
}
