//! Relays a pooled client that begins a login by a mechanism that Seawall cannot check itself. The
//! commands of a pooled client use shared server connections. A relayed client has a server
//! connection of its own.

use std::{pin::pin, sync::Arc};

use bson::RawDocument;

use super::{
    Client, End,
    own_reply::ReplyTo,
    relay::{Proxied, RelayedClient, connect_with_hello, relay},
};
use seawall_auth::Mechanism;
use seawall_command::{ErrorReply, HOST_UNREACHABLE, NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT};
use seawall_stats::Stage;
use seawall_transport::Message;

/// Number of bytes of the element `$client` before its document: the type and the name.
const CLIENT_ELEMENT_HEAD: usize = 9;

impl Client {
    /// True if this `saslStart` turns the client into a relayed client: the configuration allows
    /// it, the client has not logged in, and Seawall cannot check the mechanism itself. False for
    /// X.509, because the server would check Seawall's certificate instead of the client's.
    pub(super) fn falls_back(&self, start: &[u8]) -> bool {
        let is_new = self.identity.as_ref().is_none_or(|i| i.is_anonymous());
        let start = RawDocument::from_bytes(start).ok();
        let named = start.and_then(|start| start.get_str("mechanism").ok());
        let is_other = named.is_some_and(|name| {
            let mut terminated = Mechanism::ALL.into_iter().map(Mechanism::name);
            name != "MONGODB-X509" && terminated.all(|known| known != name)
        });
        self.shared.settings().relays_other_mechanisms && is_new && is_other
    }

    /// Establishes a server connection for this client alone, and ends pooled mode for the client.
    /// Replies with an error if no permit for a relay is left for the client's address or user, or
    /// if no server is available. Closes the client connection if no permit is left for clients
    /// that have not logged in. The wait for a server ends when the client leaves.
    pub(super) async fn fall_back(
        &mut self,
        message: Message,
        reply_to: ReplyTo,
    ) -> Result<(), End> {
        if self.handshake.is_none() {
            self.require_login();
        }
        let has_permit = self
            .handshake
            .as_ref()
            .is_some_and(|due| due.permit.is_some());
        if !has_permit {
            return self.close("unauthenticated_connections");
        }
        let Some(permit) = self.shared.limits.admit_relay(self.sharer) else {
            self.shared
                .recorder
                .count_shed_operation("relayed_connections");
            let code = NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT;
            let error = ErrorReply::new(code, "relay limit reached");
            return self.refuse(reply_to, &error).await;
        };
        self.connected.set_stage(Stage::LoggingIn);
        let metadata = self.client_element.as_deref();
        let metadata = metadata.and_then(|element| element.get(CLIENT_ELEMENT_HEAD..));
        let metadata = metadata.and_then(|bytes| RawDocument::from_bytes(bytes).ok());
        let metadata = metadata.map(RawDocument::to_owned);
        let shared = Arc::clone(&self.shared);
        let proxied = Proxied::of(&shared.settings(), &self.peer, &self.stream);
        let (proxied, metadata) = (proxied.as_ref(), metadata.as_deref());
        let connecting = connect_with_hello(&shared, proxied, metadata, self.compressors);
        let connected = self.end().unless_gone(pin!(connecting)).await;
        match connected {
            Some(Ok(target)) => {
                self.relayed = Some(Box::new((message, target, permit)));
                Err(End::Relayed)
            }
            None => {
                self.connected.record_left_unserved();
                Err(End::Gone)
            }
            Some(Err(error)) => {
                tracing::debug!(%error, peer = %self.peer.text, "could not connect to a server for a relayed client");
                let error = ErrorReply::new(HOST_UNREACHABLE, "no server available for the login");
                self.refuse(reply_to, &error).await
            }
        }
    }

    /// Serves the client as a relayed client until its connection ends.
    pub(super) async fn continue_relayed(self) {
        let Some((first, target, _permit)) = self.relayed.map(|relayed| *relayed) else {
            return;
        };
        let relayed = RelayedClient {
            stream: self.stream,
            reader: self.reader,
            connected: self.connected,
            first: Some(first),
            handshake: self.handshake.map(|due| *due),
            sharer: self.sharer,
            eviction: self.eviction,
        };
        relay(&self.shared, relayed, target).await;
    }
}
