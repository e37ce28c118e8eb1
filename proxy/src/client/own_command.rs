//! The command `seawall`: shows Seawall's state or reloads its configuration, from a driver or from
//! mongosh.
//!
//! ```text
//!  db.adminCommand({seawall: "status"})
//!  db.adminCommand({seawall: "clients", limit: 10})
//!  db.adminCommand({seawall: "reload", dryRun: true})
//! ```
//!
//! The privileges of the client's user on the servers decide which topics are allowed. For each
//! command, Seawall asks a server for these privileges on a connection of this user. The replies
//! are the same as in the HTTP API.

use std::{fmt, pin::pin, sync::Arc, time::Duration};

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::{
    Client, CredentialMode, End, backlog::Backlog, forward::HELD_REPLY_BYTES, own_reply::ReplyTo,
};
use crate::{
    limits::Turns,
    pool::Demand,
    runtime::{Action, OccasionalLog},
};
use seawall_api::Topic;
use seawall_auth::{Identity, IdentityStatus};
use seawall_command::{
    API_STRICT_ERROR, BAD_VALUE, Command, ErrorReply, HOST_UNREACHABLE, IDL_UNKNOWN_FIELD,
    INVALID_BSON, ReadPreference, TYPE_MISMATCH, Target, UNAUTHORIZED, is_state_change,
};
use seawall_stats::Phase;
use seawall_transport::{MemoryBudget, MemoryShare, Sharer, connection::reply_is_ok, subject};

/// Maximum time for reading the privileges of a user, including the selection of a server.
const RIGHTS_LIMIT: Duration = Duration::from_secs(5);

/// Number of entries (for example, clients) that a reply lists if the command has no `limit`.
const DEFAULT_LIMIT: usize = 50;

/// Maximum number of entries that a reply lists, so that the reply fits into a message.
const MAX_LIMIT: usize = 1_000;

/// Maximum number of `seawall` commands that run at the same time. Each of them uses a server
/// connection, to ask for its user's privileges.
const MAX_AT_A_TIME: usize = 4;

/// Maximum size of a reply in bytes, a little less than the maximum size of a document.
const MAX_REPLY_BYTES: usize = 16_000_000;

/// A command about Seawall itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnCommand {
    /// The information to show, or the action to run.
    pub topic: Topic,
    /// Maximum number of entries (for example, clients) that the reply lists.
    pub limit: usize,
    /// True if a reload only reports what would change.
    pub is_dry_run: bool,
}

/// Builds the replies to commands about Seawall itself. If a reply cannot be built, the client gets
/// an error with the reason.
pub struct Reporter {
    report: Box<Report>,
    /// Limits how many `seawall` commands run at a time. Each command asks a server for its user's
    /// privileges, and these requests do not count towards the concurrency limit of the server.
    /// Waiting users are served round-robin, and so are the [`Sharer`]s of each user's clients.
    turns: Turns<(u64, Sharer)>,
    /// Counts refused actions. At most one a minute is logged.
    refused_actions: OccasionalLog,
}

type Report =
    dyn Fn(OwnCommand) -> BoxFuture<'static, Result<RawDocumentBuf, String>> + Send + Sync;

impl Reporter {
    /// Creates a reporter that replies with the results of `report`.
    pub(crate) fn new(
        report: impl Fn(OwnCommand) -> BoxFuture<'static, Result<RawDocumentBuf, String>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            report: Box::new(report),
            turns: Turns::by_user(MAX_AT_A_TIME),
            refused_actions: OccasionalLog::default(),
        }
    }

    /// Logs that `action` does not run for this reason, at most once a minute. `action` is `None`
    /// for a command that only reads.
    fn log_refusal(&self, action: Option<Action>, reason: &str) {
        if let Some(action) = action
            && let Some(refused) = self.refused_actions.count(Instant::now())
        {
            action.log_refusal(reason.to_owned(), refused);
        }
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reporter")
    }
}

impl Client {
    /// Serves the command `seawall`. If the client leaves while the command waits for its turn, the
    /// command does not run and is not counted as an operation.
    pub(super) async fn serve_own(
        &mut self,
        identity: &Arc<Identity>,
        command: &Command<'_>,
        reply_to: ReplyTo,
        now: Instant,
    ) -> Result<(), End> {
        let shared = Arc::clone(&self.shared);
        let reply = match (parse(command), shared.reporter.get()) {
            (Err(error), _) => Err(error),
            (Ok(_), None) => Err(unavailable("Seawall is starting")),
            (Ok(own), Some(reporter)) => {
                let from = (identity.id().as_u64(), self.sharer);
                let turn = pin!(reporter.turns.take(from));
                let turn = self.end().unless_gone(turn).await;
                let Some(_turn) = turn else {
                    shared.recorder.count_gone_client(Phase::Permit.as_str());
                    return Err(End::Gone);
                };
                self.own_reply(reporter, identity, own).await
            }
        };
        let replies = &self.shared.memory.replies;
        let reserved = reply.and_then(|reply| {
            let bytes = reply.as_bytes().len();
            Ok((reply, reserve(replies, self.sharer, bytes)?))
        });
        let (reply, share) = reserved.unwrap_or_else(|error| (error.to_document(), None));
        let Some(share) = share else {
            return self.reply_locally(command, reply_to, &reply, now).await;
        };
        let bytes = reply.as_bytes().len();
        let sent = self.send_large(reply_to, reply, share).await;
        self.count_local(command, bytes, None, now);
        sent
    }

    /// Sends a reply for which `share` has memory. Closes a client that reads slowly if other
    /// clients need this memory.
    async fn send_large(
        &mut self,
        reply_to: ReplyTo,
        reply: RawDocumentBuf,
        share: MemoryShare,
    ) -> Result<(), End> {
        if reply_to.is_unwanted() {
            return Ok(());
        }
        let plain = self.encode(reply_to, &reply);
        // The share has memory for only two copies of the reply: `plain` and its compressed copy.
        // So `reply` is dropped first.
        drop(reply);
        let packed = reply_to.pack(plain, self.heavy()).await;
        let shared = Arc::clone(&self.shared);
        let turn = shared.limits.forwarding().stepwise(self.sharer);
        let mut end = self.end();
        let backlog = Backlog::of(packed, Some(share));
        let sent = backlog.send(&mut end, turn).await;
        sent.map_err(|_| end.end())
    }

    async fn own_reply(
        &self,
        reporter: &Reporter,
        identity: &Arc<Identity>,
        own: OwnCommand,
    ) -> Result<RawDocumentBuf, ErrorReply> {
        let action = (!own.topic.only_reads()).then(|| self.action(identity, own));
        let privileges = match self.privileges(identity).await {
            Ok(privileges) => privileges,
            Err(error) => {
                reporter.log_refusal(action, &error.message);
                return Err(error);
            }
        };
        let is_open = self.shared.logins.credentials.mode() == CredentialMode::None;
        let is_allowed = match is_open {
            // Without access control, every client may do everything on the servers. In Seawall,
            // such a client may only read information, because an action would also affect other
            // clients.
            true => own.topic.only_reads(),
            false => grants(&privileges, own.topic.required_action()),
        };
        if !is_allowed {
            let reason = match is_open {
                true => "not allowed, because the deployment has no access control".to_owned(),
                false => format!(
                    "the user needs the action {} on the cluster",
                    own.topic.required_action()
                ),
            };
            reporter.log_refusal(action, &reason);
            let topic = own.topic.name();
            let message = format!("not authorized to run seawall: {topic:?}; {reason}");
            return Err(ErrorReply::new(UNAUTHORIZED, message));
        }
        let running = action.map(Action::begin);
        let reply = (reporter.report)(own).await;
        if let Some(running) = running {
            running.end(reply.as_ref().map_or_else(|error| &**error, |_| "done"));
        }
        let reply = reply.map_err(|reason| unavailable(&reason))?;
        match reply.as_bytes().len() > MAX_REPLY_BYTES {
            true => Err(unavailable("the reply is too large; use the HTTP API")),
            false => Ok(reply),
        }
    }

    /// Describes an action of this client for the audit log.
    fn action(&self, identity: &Identity, own: OwnCommand) -> Action {
        let dry_run = if own.is_dry_run { ", dryRun: true" } else { "" };
        let action = format!("{{seawall: {:?}{dry_run}}}", own.topic.name());
        let caller = match identity.is_anonymous() {
            true => "no user".to_owned(),
            false => format!("{}.{}", identity.source(), identity.name()),
        };
        // Seawall has verified the certificate in the TLS handshake.
        let certificate = self.stream.peer_certificates().first();
        let subject = certificate.map(|of| subject(of).unwrap_or_default());
        Action::new(action, Some(caller), Some(&self.peer.text)).with_certificate(subject)
    }

    /// Asks a server for the privileges of a user, on a connection of this user.
    async fn privileges(&self, identity: &Arc<Identity>) -> Result<RawDocumentBuf, ErrorReply> {
        if identity.status() != IdentityStatus::Good || !identity.permits(self.peer.ip) {
            return Err(ErrorReply::new(UNAUTHORIZED, "the user must log in again"));
        }
        let failed = |reason: String| {
            unavailable(&format!("could not read the user's privileges: {reason}"))
        };
        let asking = async {
            let deadline = Instant::now() + RIGHTS_LIMIT;
            let topology = &self.shared.routing.topology;
            let preference = ReadPreference::PRIMARY_PREFERRED;
            let selected = topology.select(&preference, deadline);
            let pool = selected.await.map_err(|error| failed(error.to_string()))?;
            let checkout = pool.check_out(identity, Demand::OWN, deadline).await;
            let mut checkout = checkout.map_err(|error| {
                if error.requires_authentication() {
                    self.shared.logins.credentials.record_anonymous_refusal();
                }
                failed(error.to_string())
            })?;
            let command = rawdoc! { "connectionStatus": 1, "showPrivileges": true, "$db": "admin" };
            let reply = checkout.begin().run(&command).await;
            let reply = reply.map_err(|error| failed(error.to_string()))?;
            checkout.finish();
            match reply_is_ok(&reply) {
                Ok(()) => Ok(reply),
                // With the server's code, a driver would treat Seawall like a member that changed
                // its state. Old drivers also search the error text, so the server's text is not
                // used.
                Err((code, _)) if is_state_change(code) => {
                    topology.report_state_change(checkout.pool(), checkout.generation(), code);
                    Err(failed("the server changed its state".to_owned()))
                }
                Err((code, message)) => Err(ErrorReply::new(code, message)),
            }
        };
        let asked = timeout(RIGHTS_LIMIT, asking).await;
        asked.unwrap_or_else(|_| Err(failed("no server replied in time".to_owned())))
    }
}

fn unavailable(message: &str) -> ErrorReply {
    ErrorReply::new(HOST_UNREACHABLE, message)
}

/// Reserves memory for two copies of a reply of `bytes` bytes, because its client may read slowly.
/// `None` if the reply is small and needs no reservation.
///
/// # Errors
/// The budget has no memory for the reply.
fn reserve(
    budget: &MemoryBudget,
    sharer: Sharer,
    bytes: usize,
) -> Result<Option<MemoryShare>, ErrorReply> {
    if bytes <= HELD_REPLY_BYTES {
        return Ok(None);
    }
    let share = budget.try_reserve(sharer, 2 * bytes);
    let refusal = || unavailable("no memory for the reply; use a smaller limit");
    share.ok_or_else(refusal).map(Some)
}

/// True if the privileges in a reply to `connectionStatus` allow `action` on the cluster.
fn grants(reply: &RawDocument, action: &str) -> bool {
    let privileges = reply
        .get_document("authInfo")
        .and_then(|info| info.get_array("authenticatedUserPrivileges"));
    let mut privileges = privileges.into_iter().flatten();
    privileges.any(|privilege| {
        let Ok(RawBsonRef::Document(privilege)) = privilege else {
            return false;
        };
        let resource = privilege.get_document("resource");
        let is_of = |resource: &RawDocument, name| resource.get_bool(name).unwrap_or(false);
        let is_cluster = resource
            .is_ok_and(|resource| is_of(resource, "cluster") || is_of(resource, "anyResource"));
        let mut actions = privilege.get_array("actions").into_iter().flatten();
        let grants = |name: &str| name == action || name == "anyAction";
        is_cluster && actions.any(|name| name.is_ok_and(|name| name.as_str().is_some_and(grants)))
    })
}

fn parse(command: &Command<'_>) -> Result<OwnCommand, ErrorReply> {
    if command.db != "admin" {
        let message = "seawall may only be run against the admin database.";
        return Err(ErrorReply::new(UNAUTHORIZED, message));
    }
    let body = RawDocument::from_bytes(command.body);
    let body = body.map_err(|_| ErrorReply::new(INVALID_BSON, "invalid BSON"))?;
    if body.get_bool("apiStrict").unwrap_or(false) {
        let message = "Provided apiStrict:true, but the command seawall is not in API Version 1";
        return Err(ErrorReply::new(API_STRICT_ERROR, message));
    }
    let Target::Text(name) = command.target else {
        return Err(ErrorReply::new(TYPE_MISMATCH, "seawall must be a string"));
    };
    let topic = Topic::named(name).ok_or_else(|| {
        let names = Topic::ALL.map(Topic::name).join(", ");
        ErrorReply::new(
            BAD_VALUE,
            format!("unknown value of seawall; expected one of {names}"),
        )
    })?;
    let mut own = OwnCommand {
        topic,
        limit: DEFAULT_LIMIT,
        is_dry_run: false,
    };
    for element in body.iter_elements().skip(1) {
        let element = element.map_err(|_| ErrorReply::new(INVALID_BSON, "invalid BSON"))?;
        let name = element.key().as_str();
        let value = element
            .value()
            .map_err(|_| ErrorReply::new(INVALID_BSON, "invalid BSON"))?;
        let wrong = || {
            ErrorReply::new(
                TYPE_MISMATCH,
                format!("BSON field 'seawall.{name}' has the wrong type"),
            )
        };
        match name {
            "limit" => {
                let limit = number(value).and_then(|limit| usize::try_from(limit).ok());
                own.limit = limit.ok_or_else(wrong)?.min(MAX_LIMIT);
            }
            "dryRun" => {
                let number = number(value).map(|number| number != 0);
                own.is_dry_run = value.as_bool().or(number).ok_or_else(wrong)?;
            }
            // Unknown fields are refused. Otherwise a command with a misspelled `dryRun` would
            // reload the configuration.
            name if !name.starts_with('$') && !GENERIC_FIELDS.contains(&name) => {
                let message = format!("BSON field 'seawall.{name}' is an unknown field.");
                return Err(ErrorReply::new(IDL_UNKNOWN_FIELD, message));
            }
            _ => {}
        }
    }
    Ok(own)
}

/// Fields that drivers may add to every command.
const GENERIC_FIELDS: [&str; 8] = [
    "lsid",
    "comment",
    "maxTimeMS",
    "readConcern",
    "writeConcern",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
];

/// Converts a BSON number to an integer. `None` if the value is not a number or has a fraction.
fn number(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(number.into()),
        RawBsonRef::Int64(number) => Some(number),
        #[expect(
            clippy::as_conversions,
            reason = "saturates: a number out of range becomes the nearest i64"
        )]
        RawBsonRef::Double(number) if number.fract() == 0.0 => Some(number as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn parsed(body: bson::Document) -> Result<OwnCommand, i32> {
        let body = body.to_vec().unwrap();
        let command = Command::inspect(&body).unwrap();
        assert!(command.spec.is_about_seawall);
        parse(&command).map_err(|error| error.code)
    }

    #[test]
    fn a_large_reply_is_refused_if_no_memory_for_messages_is_free() {
        let budget = MemoryBudget::of_bytes(8 << 20);
        let reserve = |bytes| reserve(&budget, Sharer::Local, bytes);
        assert!(reserve(HELD_REPLY_BYTES).unwrap().is_none());
        assert_eq!(budget.used_bytes(), 0);
        let share = reserve(1 << 20).unwrap();
        assert_eq!(budget.used_bytes(), 2 << 20);
        assert_eq!(reserve(2 << 20).unwrap_err().code, HOST_UNREACHABLE);
        drop(share);
        assert!(reserve(2 << 20).unwrap().is_some());
    }

    #[test]
    fn the_seawall_command_needs_a_known_topic_and_the_admin_database() {
        let own = parsed(doc! { "seawall": "clients", "limit": 3, "$db": "admin" }).unwrap();
        assert_eq!(
            (own.topic, own.limit, own.is_dry_run),
            (Topic::Clients, 3, false)
        );
        let own = parsed(doc! { "seawall": "reload", "dryRun": true, "$db": "admin" }).unwrap();
        assert!(own.topic == Topic::Reload && own.is_dry_run);
        let number =
            parsed(doc! { "seawall": "reload", "dryRun": 1.0, "lsid": {}, "$db": "admin" });
        assert!(number.unwrap().is_dry_run);
        let large = parsed(doc! { "seawall": "shapes", "limit": 1_000_000, "$db": "admin" });
        assert_eq!(large.unwrap().limit, MAX_LIMIT);
        for (body, code) in [
            (doc! { "seawall": "status", "$db": "shop" }, 13),
            (doc! { "seawall": "other", "$db": "admin" }, 2),
            (doc! { "seawall": 1, "$db": "admin" }, 14),
            (
                doc! { "seawall": "reload", "dryrun": true, "$db": "admin" },
                40415,
            ),
            (
                doc! { "seawall": "reload", "dryRun": "yes", "$db": "admin" },
                14,
            ),
            (
                doc! { "seawall": "clients", "limit": -1, "$db": "admin" },
                14,
            ),
            (
                doc! { "seawall": "status", "apiVersion": "1", "apiStrict": true, "$db": "admin" },
                323,
            ),
        ] {
            assert_eq!(parsed(body.clone()), Err(code), "{body}");
        }
    }

    /// The resource of a privilege is a document, for example `{cluster: true}` (the cluster) or
    /// `{anyResource: true}` (everything).
    #[test]
    fn an_action_is_granted_only_by_privileges_on_the_cluster_or_on_any_resource() {
        let reply = |resource: bson::Document, actions: &[&str]| {
            let privilege = doc! { "resource": resource, "actions": actions };
            let reply =
                doc! { "authInfo": { "authenticatedUserPrivileges": [privilege] }, "ok": 1 };
            RawDocumentBuf::try_from(&reply).unwrap()
        };
        let actions = ["find", "serverStatus"];
        assert!(grants(
            &reply(doc! { "cluster": true }, &actions),
            "serverStatus"
        ));
        assert!(grants(
            &reply(doc! { "anyResource": true }, &actions),
            "serverStatus"
        ));
        assert!(!grants(
            &reply(doc! { "cluster": true }, &actions),
            "shutdown"
        ));
        assert!(grants(
            &reply(doc! { "anyResource": true }, &["anyAction"]),
            "shutdown"
        ));
        let database = doc! { "db": "", "collection": "" };
        assert!(!grants(&reply(database, &actions), "serverStatus"));
        assert!(!grants(&rawdoc! { "ok": 1 }, "serverStatus"));
    }
}
