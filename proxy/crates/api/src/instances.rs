//! The reply to a request with `instances=all`.

use serde::{Deserialize, Serialize};

/// The merged reply of several instances.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Merged<T> {
    /// The merged reply. It has the same members as the reply of one instance.
    #[serde(flatten)]
    pub reply: T,
    /// The state of each instance: first the instance that received the request, then its peers in
    /// the configured order.
    #[serde(default)]
    pub instances: Vec<InstanceState>,
}

/// An instance, and the error if its figures are missing in the merged reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceState {
    /// The admin address; `this instance` for the instance that received the request.
    pub address: String,
    /// The reason why the merged reply lacks this instance, or a part of its figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
