//! Operations that took long become lines of the slow log.

use std::time::SystemTime;

use bson::RawDocument;

use super::{
    Observer, Outcome, PHASES,
    slow_log::{Entry, SlowLog},
    sums::Record,
};

/// Whose operation it was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sender<'a> {
    /// The client's number.
    pub(super) client: i32,
    /// The command's body.
    pub(super) command: Option<&'a [u8]>,
}

impl Observer {
    /// Has an operation logged that has just ended, if it took long enough.
    pub(super) fn log_if_slow(&self, record: &Record, sender: Sender<'_>) {
        let Some(log) = &self.slow_log else {
            return;
        };
        let total = record.phases.iter().sum();
        let is_its_own = matches!(record.outcome, Outcome::Local) || record.is_awaiting;
        if !is_its_own && log.wants(record.place.id.as_u64(), total) {
            self.log(log, record, sender);
        }
    }

    fn log(&self, log: &SlowLog, record: &Record, sender: Sender<'_>) {
        const _: () = assert!(PHASES == 6, "the slow log has a name for each");
        let registry = self.registry.lock();
        let namespace = registry.namespaces().nth(record.place.namespace.0).cloned();
        let row = record
            .place
            .shape
            .and_then(|shape| registry.row(shape.serial));
        let text = row.map(|(shape, _, _)| shape.text.clone());
        drop(registry);
        let Some(namespace) = namespace else { return };
        let servers = self.servers.lock();
        let server = record
            .server
            .and_then(|server| servers.get(server.0))
            .cloned();
        drop(servers);
        let clients = self.clients.lock();
        let client = clients.get(&sender.client).cloned();
        drop(clients);
        let command = sender
            .command
            .and_then(|body| RawDocument::from_bytes(body).ok());
        log.write(&Entry {
            at: SystemTime::now(),
            shape: record.place.id.as_u64(),
            command: namespace.command,
            db: &namespace.db,
            collection: &namespace.collection,
            text: text.as_deref().unwrap_or_default(),
            outcome: record.outcome.as_str(),
            error_code: record.code,
            total: record.phases.iter().sum(),
            phases: record.phases,
            request_bytes: record.request_bytes,
            reply_bytes: record.reply_bytes,
            documents: record.documents,
            server: server.as_deref(),
            client: sender.client,
            user: client.as_ref().and_then(|client| client.user.as_deref()),
            application: client
                .as_ref()
                .and_then(|client| client.application.as_deref()),
            command_json: command.and_then(|command| log.values(namespace.command, command)),
        });
    }

    /// Lines that the slow log had to leave out.
    pub fn slow_log_left_out(&self) -> u64 {
        self.slow_log.as_ref().map_or(0, SlowLog::left_out)
    }
}
