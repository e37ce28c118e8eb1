//! `hello` and its legacy forms: parses the client's fields, and builds the reply in which Seawall
//! describes itself.
//!
//! Source:
//! <https://github.com/mongodb/specifications/blob/master/source/mongodb-handshake/handshake.md>.

use std::time::Duration;

use bson::{DateTime, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, oid::ObjectId};

use crate::topology::TopologyDescription;
use seawall_command::{
    API_STRICT_ERROR, API_VERSION_ERROR, BAD_VALUE, CLIENT_METADATA_APP_NAME_TOO_LARGE,
    CLIENT_METADATA_CANNOT_BE_MUTATED, CLIENT_METADATA_DOCUMENT_TOO_LARGE,
    CLIENT_METADATA_MISSING_FIELD, ErrorReply, INCOMPLETE_AWAITABLE_HELLO, INVALID_BSON,
    SHUTDOWN_IN_PROGRESS, TYPE_MISMATCH, UNKNOWN_SPECULATIVE_COMMAND, table,
};
use seawall_wire::{Compressor, ElementKind, Elements, MAX_BSON_OBJECT_BYTES, MAX_MESSAGE_BYTES};

/// Newest wire version whose commands Seawall knows (MongoDB 8.0).
const MAX_WIRE_VERSION: i32 = 25;

/// `maxWriteBatchSize` of all servers.
const MAX_WRITE_BATCH_SIZE: i32 = 100_000;

/// `logicalSessionTimeoutMinutes` in a reply if no server reports a value. It is the servers'
/// default.
const SESSION_TIMEOUT_MINUTES: i32 = 30;

/// Largest client metadata document that a mongos accepts, in bytes. A mongos accepts less than a
/// mongod, because the mongos adds fields before it forwards the document.
const MAX_METADATA_BYTES: usize = 512;

/// Longest `application.name`, in bytes.
const MAX_APPLICATION_NAME_BYTES: usize = 128;

/// The parts that client metadata must have, each with the string fields that it must have.
const REQUIRED_METADATA: [(&str, &[&str]); 2] =
    [("driver", &["name", "version"]), ("os", &["type"])];

/// Fields of a client's hello.
#[derive(Debug, Default)]
pub(super) struct Hello {
    pub(super) is_legacy: bool,
    pub(super) hello_ok: bool,
    pub(super) announces_backpressure: bool,
    /// The user whose mechanisms the client asks for, as `db.user`; `None` if it does not ask.
    pub(super) sasl_supported_mechs: Option<String>,
    pub(super) speculative: Option<RawDocumentBuf>,
    pub(super) metadata: Option<RawDocumentBuf>,
    /// Known compressors that the client offers; `None` if the hello has no `compression` field.
    pub(super) compressors: Option<Compressors>,
    /// True if the client's driver is in load-balanced mode: it runs no monitor, and requires a
    /// `serviceId` in the reply.
    pub(super) is_load_balanced: bool,
}

/// A set of compressors, in the client's order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compressors([Option<Compressor>; Compressor::ALL.len()]);

impl Compressors {
    fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut compressors = Self::default();
        for compressor in names.filter_map(Compressor::parse) {
            let is_known = compressors.iter().any(|known| known == compressor);
            let free = compressors.0.iter_mut().find(|slot| slot.is_none());
            if let (false, Some(slot)) = (is_known, free) {
                *slot = Some(compressor);
            }
        }
        compressors
    }

    /// Returns the compressors that are in `allowed`, in the client's order.
    pub(super) fn among(self, allowed: &[Compressor]) -> Self {
        Self::of(
            self.iter()
                .filter(|c| allowed.contains(c))
                .map(Compressor::name),
        )
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Compressor> {
        self.0.iter().copied().flatten()
    }
}

impl Hello {
    /// Parses a hello, except for `apiVersion`, which [`check_api_version`] checks.
    ///
    /// # Errors
    /// A server would refuse a field. The error is the reply that the server would send.
    pub(super) fn parse(
        body: &RawDocument,
        is_legacy: bool,
        is_first: bool,
    ) -> Result<Self, ErrorReply> {
        let fields = HelloFields::of(body)?;
        fields.check_awaitable()?;
        let mut hello = Self {
            is_legacy,
            hello_ok: is_true(fields.hello_ok),
            is_load_balanced: is_true(fields.load_balanced),
            ..Self::default()
        };
        hello.announces_backpressure = match fields.backpressure {
            Some(RawBsonRef::String(version)) => !version.is_empty(),
            Some(RawBsonRef::Boolean(announced)) => announced,
            _ => false,
        };
        hello.sasl_supported_mechs = match fields.sasl_supported_mechs {
            Some(RawBsonRef::String(user)) if user.contains('.') => Some(user.to_owned()),
            Some(RawBsonRef::String(user)) => {
                let message =
                    format!("UserName must contain a '.' separated database.user pair: {user}");
                return Err(ErrorReply::new(BAD_VALUE, message));
            }
            Some(RawBsonRef::Document(_)) | None => None,
            _ => {
                return Err(ErrorReply::new(
                    TYPE_MISMATCH,
                    "saslSupportedMechs must be a string",
                ));
            }
        };
        if let Some(RawBsonRef::Document(command)) = fields.speculative {
            hello.speculative = Some(check_speculative(command)?);
        }
        hello.compressors = match fields.compression {
            Some(RawBsonRef::Array(names)) => {
                let names = names.into_iter().filter_map(Result::ok);
                Some(Compressors::of(names.filter_map(|name| name.as_str())))
            }
            None => None,
            _ => {
                return Err(ErrorReply::new(
                    TYPE_MISMATCH,
                    "compression must be an array",
                ));
            }
        };
        hello.metadata = match fields.client {
            Some(RawBsonRef::Document(metadata)) => Some(check_metadata(metadata, is_first)?),
            None => None,
            Some(_) => {
                let message = "The client metadata document must be a document";
                return Err(ErrorReply::new(TYPE_MISMATCH, message));
            }
        };
        Ok(hello)
    }

    /// True if the hello looks like that of a driver's monitor, which never logs in. A client that
    /// will log in with SCRAM asks for its mechanisms in the hello, or begins the login in the
    /// hello. The hello of a client that will log in with another mechanism can look like that of a
    /// monitor.
    pub(super) fn is_from_monitor(&self) -> bool {
        self.metadata.is_some()
            && !self.is_load_balanced
            && self.sasl_supported_mechs.is_none()
            && self.speculative.is_none()
    }
}

/// The elements of a hello that Seawall reads. If several elements have the same name, the first
/// one is used.
#[derive(Default)]
struct HelloFields<'a> {
    hello_ok: Option<RawBsonRef<'a>>,
    load_balanced: Option<RawBsonRef<'a>>,
    backpressure: Option<RawBsonRef<'a>>,
    sasl_supported_mechs: Option<RawBsonRef<'a>>,
    speculative: Option<RawBsonRef<'a>>,
    compression: Option<RawBsonRef<'a>>,
    client: Option<RawBsonRef<'a>>,
    topology_version: Option<RawBsonRef<'a>>,
    max_await_time: Option<RawBsonRef<'a>>,
}

impl<'a> HelloFields<'a> {
    fn of(body: &'a RawDocument) -> Result<Self, ErrorReply> {
        let mut fields = Self::default();
        let invalid = |_| ErrorReply::new(INVALID_BSON, "invalid BSON");
        for element in body.iter_elements() {
            let element = element.map_err(invalid)?;
            let field = match element.key().as_str() {
                "helloOk" => &mut fields.hello_ok,
                "loadBalanced" => &mut fields.load_balanced,
                "backpressure" => &mut fields.backpressure,
                "saslSupportedMechs" => &mut fields.sasl_supported_mechs,
                "speculativeAuthenticate" => &mut fields.speculative,
                "compression" => &mut fields.compression,
                "client" => &mut fields.client,
                "topologyVersion" => &mut fields.topology_version,
                "maxAwaitTimeMS" => &mut fields.max_await_time,
                _ => continue,
            };
            if field.is_none() {
                *field = Some(element.value().map_err(invalid)?);
            }
        }
        Ok(fields)
    }

    /// Refuses a hello that has only one of `topologyVersion` and `maxAwaitTimeMS`, as a server
    /// does.
    fn check_awaitable(&self) -> Result<(), ErrorReply> {
        if self.topology_version.is_some() != self.max_await_time.is_some() {
            let message =
                "A request must include both 'topologyVersion' and 'maxAwaitTimeMS', or neither";
            return Err(ErrorReply::new(INCOMPLETE_AWAITABLE_HELLO, message));
        }
        // Seawall sends no topologyVersion, so a client's topologyVersion comes from another
        // process. A server replies to such a hello at once, without awaiting a change. Seawall
        // does the same.
        Ok(())
    }
}

fn is_true(value: Option<RawBsonRef<'_>>) -> bool {
    match value {
        Some(RawBsonRef::Boolean(value)) => value,
        Some(RawBsonRef::Int32(value)) => value != 0,
        Some(RawBsonRef::Double(value)) => value != 0.0,
        _ => false,
    }
}

/// Refuses a wrong `apiVersion`, as a server that supports the Stable API does.
pub(super) fn check_api_version(body: &RawDocument, is_legacy: bool) -> Result<(), ErrorReply> {
    match body.get("apiVersion") {
        Ok(Some(RawBsonRef::String("1"))) if is_legacy && is_strict(body) => {
            let message =
                "Provided apiStrict:true, but the command isMaster is not in API Version 1";
            Err(ErrorReply::new(API_STRICT_ERROR, message))
        }
        Ok(None | Some(RawBsonRef::String("1"))) => Ok(()),
        Ok(Some(RawBsonRef::String(_))) => Err(ErrorReply::new(
            API_VERSION_ERROR,
            "API version must be \"1\"",
        )),
        _ => Err(ErrorReply::new(
            TYPE_MISMATCH,
            "apiVersion must be a string",
        )),
    }
}

fn is_strict(body: &RawDocument) -> bool {
    is_true(body.get("apiStrict").ok().flatten())
}

fn check_speculative(command: &RawDocument) -> Result<RawDocumentBuf, ErrorReply> {
    let first = command.iter().next().and_then(Result::ok);
    match first.map(|(name, _)| table::find(name.as_str().as_bytes())) {
        Some(spec) if spec.class.begins_login() => Ok(command.to_owned()),
        Some(_) => Err(ErrorReply::new(
            UNKNOWN_SPECULATIVE_COMMAND,
            "speculativeAuthenticate needs saslStart or authenticate",
        )),
        None => Err(ErrorReply::new(
            BAD_VALUE,
            "speculativeAuthenticate must not be empty",
        )),
    }
}

/// Refuses client metadata that a server would refuse. Seawall adds the metadata to the client's
/// commands, so without this check a server would refuse each of these commands.
fn check_metadata(metadata: &RawDocument, is_first: bool) -> Result<RawDocumentBuf, ErrorReply> {
    if !is_first {
        let message = "The client metadata document may only be sent in the first hello";
        return Err(ErrorReply::new(CLIENT_METADATA_CANNOT_BE_MUTATED, message));
    }
    if metadata.as_bytes().len() > MAX_METADATA_BYTES {
        let message = format!(
            "The client metadata document must be less than or equal to {MAX_METADATA_BYTES} bytes"
        );
        return Err(ErrorReply::new(CLIENT_METADATA_DOCUMENT_TOO_LARGE, message));
    }
    let bytes = metadata.as_bytes();
    if let Some(application) = metadata_part(bytes, "application")?
        && let Some(name) = metadata_text(application, "application", "name")?
        && name.len() > MAX_APPLICATION_NAME_BYTES
    {
        let message = format!(
            "The 'client.application.name' must be at most {MAX_APPLICATION_NAME_BYTES} bytes"
        );
        return Err(ErrorReply::new(CLIENT_METADATA_APP_NAME_TOO_LARGE, message));
    }
    for (part, fields) in REQUIRED_METADATA {
        let Some(document) = metadata_part(bytes, part)? else {
            let message =
                format!("Missing required sub-document '{part}' in the client metadata document");
            return Err(ErrorReply::new(CLIENT_METADATA_MISSING_FIELD, message));
        };
        for field in fields {
            if metadata_text(document, part, field)?.is_none() {
                let message = format!(
                    "Missing required field '{part}.{field}' in the client metadata document"
                );
                return Err(ErrorReply::new(CLIENT_METADATA_MISSING_FIELD, message));
            }
        }
    }
    Ok(metadata.to_owned())
}

/// Returns a part of the client metadata, such as `driver`; `None` if the metadata has no such
/// part. A server also accepts an array: some languages cannot distinguish an empty document from
/// an empty array.
///
/// # Errors
/// The part is neither a document nor an array.
fn metadata_part<'a>(metadata: &'a [u8], part: &str) -> Result<Option<&'a [u8]>, ErrorReply> {
    match Elements::find(metadata, part).map(|element| element.value) {
        Some(ElementKind::Document(bytes) | ElementKind::Array(bytes)) => Ok(Some(bytes)),
        None => Ok(None),
        Some(_) => {
            let message =
                format!("The '{part}' field of the client metadata must be a BSON document");
            Err(ErrorReply::new(TYPE_MISMATCH, message))
        }
    }
}

/// Returns the bytes of a string field. `document` is the part of the client metadata with the name
/// `part`. `None` if `document` has no such field.
///
/// # Errors
/// The field is not a string.
fn metadata_text<'a>(
    document: &'a [u8],
    part: &str,
    field: &str,
) -> Result<Option<&'a [u8]>, ErrorReply> {
    match Elements::find(document, field).map(|element| element.value) {
        Some(ElementKind::String(text)) => Ok(Some(text)),
        None => Ok(None),
        Some(_) => {
            let message =
                format!("The '{part}.{field}' field must be a string in the client metadata");
            Err(ErrorReply::new(TYPE_MISMATCH, message))
        }
    }
}

/// Builds the element `$client`, which Seawall adds to a client's commands. Its document has at
/// most `max_bytes` bytes. If there is no room for the field `mongos`, the document has only the
/// client's metadata. Returns `None` if the metadata alone is too large.
pub(super) fn client_element(
    metadata: &RawDocument,
    host: &str,
    peer: &str,
    max_bytes: usize,
) -> Option<Box<[u8]>> {
    let mut mongos = RawDocumentBuf::new();
    mongos.append(cstr!("host"), host);
    mongos.append(cstr!("client"), peer);
    mongos.append(
        cstr!("version"),
        concat!("seawall ", env!("CARGO_PKG_VERSION")),
    );
    let mut client = metadata.to_owned();
    client.append(cstr!("mongos"), mongos);
    let fitting = [client.as_bytes(), metadata.as_bytes()]
        .into_iter()
        .find(|document| document.len() <= max_bytes)?;
    Some([b"\x03$client\0", fitting].concat().into_boxed_slice())
}

/// The facts from which the reply to a hello is built.
pub(super) struct Greeting<'a> {
    pub(super) description: &'a TopologyDescription,
    pub(super) connection_id: i32,
    pub(super) compressors: Compressors,
    /// Identifies this process; the same for all clients.
    pub(super) service_id: ObjectId,
    pub(super) mechanisms: Option<Vec<String>>,
    pub(super) speculative: Option<RawDocumentBuf>,
    /// True if clients need not log in.
    pub(super) is_open: bool,
}

impl Greeting<'_> {
    /// Builds the reply. In front of a replica set or sharded cluster, the reply looks like that of
    /// a mongos. In front of a standalone, it looks like that of a standalone, because clients send
    /// `txnNumber` to a mongos, and the standalone would refuse it. The reply has no
    /// `topologyVersion`, so drivers poll `hello` and get no streamed replies. After a state-change
    /// error, a driver that polls uses Seawall again within half a second. A driver with streamed
    /// replies would wait for the next one.
    pub(super) fn reply(self, hello: &Hello) -> RawDocumentBuf {
        let mut reply = RawDocumentBuf::new();
        let is_standalone = self.description.is_standalone;
        let writable = if hello.is_legacy {
            cstr!("ismaster")
        } else {
            cstr!("isWritablePrimary")
        };
        reply.append(writable, true);
        if !is_standalone {
            reply.append(cstr!("msg"), "isdbgrid");
        }
        if hello.hello_ok && !self.description.lacks_hello_ok {
            reply.append(cstr!("helloOk"), true);
        }
        let int = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        reply.append(cstr!("maxBsonObjectSize"), int(MAX_BSON_OBJECT_BYTES));
        reply.append(cstr!("maxMessageSizeBytes"), int(MAX_MESSAGE_BYTES));
        reply.append(cstr!("maxWriteBatchSize"), MAX_WRITE_BATCH_SIZE);
        reply.append(cstr!("localTime"), DateTime::now());
        let timeouts = self
            .description
            .servers
            .iter()
            .filter_map(|s| s.probe.session_timeout_minutes);
        let timeout = timeouts.min().unwrap_or(SESSION_TIMEOUT_MINUTES);
        reply.append(cstr!("logicalSessionTimeoutMinutes"), timeout);
        reply.append(cstr!("connectionId"), self.connection_id);
        let max_wire_version = self.description.max_wire_version.min(MAX_WIRE_VERSION);
        reply.append(cstr!("minWireVersion"), 0);
        reply.append(cstr!("maxWireVersion"), max_wire_version);
        if is_standalone {
            reply.append(cstr!("readOnly"), false);
        }
        if self.compressors != Compressors::default() {
            let mut array = RawArrayBuf::new();
            self.compressors.iter().for_each(|c| array.push(c.name()));
            reply.append(cstr!("compression"), array);
        }
        if let Some(mechanisms) = self.mechanisms.filter(|m| !m.is_empty()) {
            let mut array = RawArrayBuf::new();
            mechanisms.iter().for_each(|name| array.push(name.as_str()));
            reply.append(cstr!("saslSupportedMechs"), array);
        }
        if let Some(speculative) = self.speculative {
            reply.append(cstr!("speculativeAuthenticate"), speculative);
        }
        // In front of a standalone, the reply has no `serviceId`, so a driver in load-balanced mode
        // reports that the deployment does not support load balancing. With `serviceId`, the driver
        // would send `txnNumber`, which the standalone refuses.
        if hello.is_load_balanced && !is_standalone {
            reply.append(cstr!("serviceId"), self.service_id);
        }
        reply.append(cstr!("ok"), 1.0);
        // The reply contains an unsigned cluster time only if clients need not log in. The client
        // sends the time back in its next command, and servers with access control would refuse an
        // unsigned time.
        let cluster_time = self.description.cluster_time.as_ref();
        let cluster_time = cluster_time.filter(|time| time.is_signed() || self.is_open);
        if let Some(cluster_time) = cluster_time {
            reply.append(cstr!("$clusterTime"), cluster_time.document().to_owned());
        }
        reply
    }
}

/// The reply to a hello while Seawall drains. `remaining` is the time until the drain ends. The
/// reply makes drivers use another router.
pub(super) fn quiesce(remaining: Duration) -> RawDocumentBuf {
    let message = "The server is in quiesce mode and will shut down";
    let mut reply = ErrorReply::new(SHUTDOWN_IN_PROGRESS, message).to_document();
    let millis = i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX);
    reply.append(cstr!("remainingQuiesceTimeMillis"), millis);
    reply
}

/// The reply to a hello or to `buildInfo` while Seawall does not know the deployment yet. Like
/// [`quiesce`], the reply makes drivers use another router.
pub(super) fn unknown_deployment(description: &TopologyDescription) -> RawDocumentBuf {
    let mut message = "No server of the deployment has been seen yet".to_owned();
    if let Some(failure) = description.connect_failure() {
        message.push_str("; Seawall could not connect to a server: ");
        message.push_str(failure);
    }
    ErrorReply::new(SHUTDOWN_IN_PROGRESS, message).to_document()
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;
    use crate::topology::ClusterTime;

    fn parse(body: Document) -> Result<Hello, i32> {
        let body = RawDocumentBuf::try_from(&body).unwrap();
        Hello::parse(&body, false, true).map_err(|error| error.code)
    }

    fn metadata() -> Document {
        doc! {"application": {"name": "a"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}}
    }

    #[test]
    fn hello_fields_of_a_driver_are_parsed_and_unknown_fields_are_ignored() {
        let hello = parse(doc! {
            "hello": 1, "helloOk": true, "backpressure": "2", "saslSupportedMechs": "admin.a.b",
            "speculativeAuthenticate": {"saslStart": 1}, "client": metadata(), "foo": 1,
        });
        let hello = hello.unwrap();
        assert!(hello.hello_ok && hello.announces_backpressure);
        assert_eq!(hello.sasl_supported_mechs.as_deref(), Some("admin.a.b"));
        assert!(hello.speculative.is_some() && hello.metadata.is_some());
        assert!(
            parse(doc! {"hello": 1, "backpressure": true})
                .unwrap()
                .announces_backpressure
        );
    }

    #[test]
    fn the_first_of_two_hello_fields_with_the_same_name_is_used() {
        let twice = |values: [bool; 2]| {
            let mut body = RawDocumentBuf::new();
            for value in values {
                body.append(bson::raw::cstr!("helloOk"), value);
            }
            Hello::parse(&body, false, true).unwrap().hello_ok
        };
        assert!(twice([true, false]));
        assert!(!twice([false, true]));
    }

    #[test]
    fn only_hello_fields_that_seawall_reads_are_decoded() {
        let with_invalid_text = |name: &str| {
            let body = RawDocumentBuf::try_from(&doc! {name: "??"}).unwrap();
            let mut bytes = body.into_bytes();
            let text = bytes.iter().position(|byte| *byte == b'?').unwrap();
            bytes[text] = 0xff;
            let body = RawDocumentBuf::from_bytes(bytes).unwrap();
            let parsed = Hello::parse(&body, false, true);
            parsed.map(|_| ()).map_err(|error| error.code)
        };
        assert_eq!(with_invalid_text("comment"), Ok(()));
        assert_eq!(with_invalid_text("backpressure"), Err(22));
    }

    #[test]
    fn invalid_hellos_are_refused_with_the_error_codes_of_a_server() {
        let with = |field: &str, value: bson::Bson| {
            let mut client = metadata();
            client.insert(field, value);
            doc! {"hello": 1, "client": client}
        };
        let without = |field: &str| {
            let mut client = metadata();
            client.remove(field);
            doc! {"hello": 1, "client": client}
        };
        let cases = [
            (doc! {"hello": 1, "saslSupportedMechs": "nodot"}, 2),
            (doc! {"hello": 1, "saslSupportedMechs": 5}, 14),
            (doc! {"hello": 1, "speculativeAuthenticate": {}}, 2),
            (
                doc! {"hello": 1, "speculativeAuthenticate": {"ping": 1}},
                51769,
            ),
            (doc! {"hello": 1, "maxAwaitTimeMS": 5}, 31368),
            (doc! {"hello": 1, "topologyVersion": {}}, 31368),
            (with("x", "y".repeat(600).into()), 185),
            (
                with("application", doc! {"name": "n".repeat(129)}.into()),
                184,
            ),
            (with("application", true.into()), 14),
            (with("application", doc! {"name": true}.into()), 14),
            (with("driver", true.into()), 14),
            (with("driver", doc! {"name": "d", "version": 1}.into()), 14),
            (with("os", doc! {"type": true}.into()), 14),
            (doc! {"hello": 1, "client": true}, 14),
            (with("driver", Vec::<bson::Bson>::new().into()), 183),
            (with("driver", doc! {"name": "d"}.into()), 183),
            (with("os", doc! {"name": "x"}.into()), 183),
            (without("driver"), 183),
            (without("os"), 183),
        ];
        for (body, code) in cases {
            assert_eq!(parse(body.clone()).map(|_| ()), Err(code), "{body}");
        }
        let array = with("application", Vec::<bson::Bson>::new().into());
        assert_eq!(parse(array).map(|_| ()), Ok(()));
        let again = RawDocumentBuf::try_from(&doc! {"hello": 1, "client": metadata()}).unwrap();
        assert_eq!(Hello::parse(&again, false, false).unwrap_err().code, 186);
    }

    #[test]
    fn invalid_api_versions_are_refused_with_the_error_codes_of_a_server() {
        let strict = || doc! {"hello": 1, "apiVersion": "1", "apiStrict": true};
        let cases = [
            (doc! {"hello": 1}, true, None),
            (doc! {"hello": 1, "apiVersion": "1"}, true, None),
            (strict(), false, None),
            (strict(), true, Some(323)),
            (doc! {"hello": 1, "apiVersion": "2"}, false, Some(322)),
            (doc! {"hello": 1, "apiVersion": 1}, false, Some(14)),
        ];
        for (body, is_legacy, code) in cases {
            let body = RawDocumentBuf::try_from(&body).unwrap();
            let refused = check_api_version(&body, is_legacy);
            assert_eq!(refused.err().map(|error| error.code), code, "{body:?}");
        }
    }

    /// A signature with the key id 0 means that the cluster time is unsigned.
    #[test]
    fn a_hello_reply_has_an_unsigned_cluster_time_only_if_clients_need_not_log_in() {
        let sends = |key_id: i64, is_open: bool| {
            let timestamp = bson::Timestamp {
                time: 1,
                increment: 1,
            };
            let hash = bson::Binary {
                subtype: bson::spec::BinarySubtype::Generic,
                bytes: vec![0; 20],
            };
            let signature = doc! {"hash": hash, "keyId": key_id};
            let time = doc! {"clusterTime": timestamp, "signature": signature};
            let seen = RawDocumentBuf::try_from(&doc! {"$clusterTime": time}).unwrap();
            let description = TopologyDescription {
                cluster_time: ClusterTime::of(&seen),
                ..TopologyDescription::default()
            };
            assert!(description.cluster_time.is_some());
            let greeting = Greeting {
                description: &description,
                connection_id: 1,
                compressors: Compressors::default(),
                service_id: ObjectId::new(),
                mechanisms: None,
                speculative: None,
                is_open,
            };
            let reply = greeting.reply(&Hello::default());
            reply.get("$clusterTime").unwrap().is_some()
        };
        assert!(sends(7, false) && sends(7, true) && sends(0, true));
        assert!(!sends(0, false));
    }

    /// Seawall adds the field `$client` to a command. Servers refuse a command in which this field
    /// is too large.
    #[test]
    fn a_client_field_that_would_be_too_large_omits_the_address_of_the_client() {
        let metadata = RawDocumentBuf::try_from(&metadata()).unwrap();
        let element = client_element(&metadata, "h:1", "p:2", 1024).unwrap();
        assert!(element.starts_with(b"\x03$client\0"));
        let document = RawDocument::from_bytes(&element[9..]).unwrap();
        let mongos = document.get_document("mongos").unwrap();
        assert_eq!(mongos.get_str("client").unwrap(), "p:2");
        let whole = document.as_bytes().len();
        let exact = client_element(&metadata, "h:1", "p:2", whole).unwrap();
        assert_eq!(exact, element);
        let shorter = client_element(&metadata, "h:1", "p:2", whole - 1).unwrap();
        assert_eq!(&shorter[9..], metadata.as_bytes());
        let bytes = metadata.as_bytes().len();
        assert!(client_element(&metadata, "h:1", "p:2", bytes - 1).is_none());
    }
}
