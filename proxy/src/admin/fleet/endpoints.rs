//! The paths whose replies can be merged, and the functions that merge them.

use axum::http::StatusCode;
use seawall_api::{
    Annotations, Changes, Clients, Configuration, GaugeTimeline, Heatmap, HeatmapShapes,
    InstanceState, Listed, Merge, Merged, Namespaces, Pools, Report, Servers, Shape, Shapes,
    SlowOperations, Sort, Sparklines, Stalls, Status, Storms, Tick, Timeline, Topology, add_reply,
    compare_merged, read,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{InstanceReply, MAX_REPLY_OBJECTS, OWN, QueryParameters, ROWS_OF_INSTANCE};
use crate::admin::{DEFAULT_LIMIT, DEFAULT_SLOW, MAX_LIMIT, Refused, insight::REPORTED_SHAPES};

/// The largest number that a reply may contain. JavaScript represents whole numbers up to this
/// number exactly, and the sum over all instances does not overflow.
const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;

/// A path whose replies can be merged.
pub(super) struct Endpoint {
    /// The parameters of the request to each instance.
    pub(super) parameters: QueryParameters,
    pub(super) asked: Asked,
    pub(super) merge: MergeReplies,
}

/// Merges the replies of all instances into one JSON text. `None` if no instance has sent a valid
/// reply with figures. But if at least one instance has replied that it does not have the requested
/// shape or namespace, and a peer has sent no valid reply, this function fails: that peer may have
/// the figures. Also fails if the merged reply cannot be encoded.
type MergeReplies = fn(Vec<InstanceReply>, &Asked) -> Result<Option<Vec<u8>>, Refused>;

/// The parameters of the caller's request that are applied to the merged reply.
pub(super) struct Asked {
    limit: Option<usize>,
    sort: Sort,
    has_distributions: bool,
}

impl Asked {
    fn limit_or(&self, default: usize) -> usize {
        self.limit.unwrap_or(default).min(MAX_LIMIT)
    }
}

/// A reply that can be adapted to the request after the merge.
trait Adapt: Merge + DeserializeOwned + Serialize {
    /// Applies the limit of the request, and removes distributions that were not requested.
    fn adapt(&mut self, _asked: &Asked) {}

    /// The reason why the figures of this reply cannot be merged; `None` if they can be merged. The
    /// other members of the reply are merged in both cases.
    fn omission(&self) -> Option<String> {
        None
    }
}

/// The endpoint of a path; `None` if its replies cannot be merged.
pub(super) fn endpoint(path: &str, parameters: QueryParameters) -> Option<Endpoint> {
    let topic = path.strip_prefix("/api/v1/")?;
    let is_shape = |id: &str| !id.is_empty() && id.bytes().all(|c| c.is_ascii_alphanumeric());
    let merge = match topic {
        "status" => merged::<Status>,
        "tick" => merged::<Tick>,
        "shapes" => merged::<Shapes>,
        "namespaces" => merged::<Namespaces>,
        "report" => merged::<Report>,
        "timeline" => merged::<Timeline>,
        "heatmap" => merged::<Heatmap>,
        "heatmap/shapes" => merged::<HeatmapShapes>,
        "gauges" => merged::<GaugeTimeline>,
        "sparklines" => merged::<Sparklines>,
        "slow" => merged::<SlowOperations>,
        "storms" => merged::<Storms>,
        "stalls" => merged::<Stalls>,
        "changes" => merged::<Changes>,
        "annotations" => merged::<Annotations>,
        "clients" => merged::<Clients>,
        "pools" => merged::<Listed<Pools>>,
        "servers" => merged::<Listed<Servers>>,
        "topology" => merged::<Topology>,
        "config" => merged::<Configuration>,
        _ if topic.strip_prefix("shapes/").is_some_and(is_shape) => merged::<Shape>,
        _ => return None,
    };
    let value = |wanted: &str| {
        let mut pairs = parameters.iter();
        let found = pairs.find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.clone())
    };
    let asked = Asked {
        limit: value("limit").and_then(|limit| limit.parse().ok()),
        sort: value("sort")
            .and_then(|sort| sort.parse().ok())
            .unwrap_or_default(),
        has_distributions: value("distributions").as_deref() == Some("true"),
    };
    let limit = match topic {
        "shapes" | "heatmap/shapes" | "namespaces" => Some(ROWS_OF_INSTANCE),
        _ => asked.limit,
    };
    let mut parameters = parameters;
    parameters.retain(|(name, _)| name != "limit" && name != "distributions");
    parameters.extend(limit.map(|limit| ("limit".to_owned(), limit.to_string())));
    let takes_distributions =
        ["shapes", "namespaces", "changes", "report", "tick"].contains(&topic) || is_one(topic);
    if takes_distributions {
        parameters.push(("distributions".to_owned(), "true".to_owned()));
    }
    Some(Endpoint {
        parameters,
        asked,
        merge,
    })
}

/// True if the path, without `/api/v1/`, names one shape.
fn is_one(topic: &str) -> bool {
    topic.starts_with("shapes/")
}

/// Merges the replies. For an instance without a valid reply, the merged reply contains only the
/// address and the error. For an instance without operations of the requested shape or namespace,
/// it contains only the address. See [`MergeReplies`].
fn merged<T: Adapt>(
    replies: Vec<InstanceReply>,
    asked: &Asked,
) -> Result<Option<Vec<u8>>, Refused> {
    let mut sum: Option<T> = None;
    let mut instances = Vec::new();
    let mut omissions = Vec::new();
    let mut is_any_complete = false;
    for (address, reply) in replies {
        let added = reply.and_then(|reply| {
            let Some(reply) = reply else {
                return Ok(None);
            };
            let reply: T = parsed(&reply.bytes)?;
            let omission = reply.omission();
            add_reply(&mut sum, &address, reply)?;
            Ok(omission)
        });
        let (error, omission) = match added {
            Ok(omission) => (None, omission),
            Err(error) => (Some(error), None),
        };
        is_any_complete |= error.is_none() && omission.is_none();
        omissions.push(omission);
        instances.push(InstanceState { address, error });
    }
    // If no instance has figures that can be merged, the merged reply itself contains the reason.
    // Otherwise each instance without such figures gets the reason as its error.
    if is_any_complete {
        for (instance, omission) in instances.iter_mut().zip(omissions) {
            instance.error = instance.error.take().or(omission);
        }
    }
    let Some(mut reply) = sum else {
        // No instance has sent figures. So if `is_any_complete` is true, an instance has replied
        // that it does not have the requested shape or namespace. A peer with an error may have it.
        return match error_of_a_peer(&instances).filter(|_| is_any_complete) {
            Some(why) => Err((StatusCode::BAD_GATEWAY, why)),
            None => Ok(None),
        };
    };
    reply.adapt(asked);
    let merged = serde_json::to_vec(&Merged { reply, instances });
    let failed =
        |error: serde_json::Error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"));
    merged.map(Some).map_err(failed)
}

/// The error of the first peer whose figures are missing.
fn error_of_a_peer(instances: &[InstanceState]) -> Option<String> {
    let mut peers = instances.iter().filter(|of| of.address != OWN);
    peers.find_map(|InstanceState { address, error }| {
        Some(format!("{address}: {}\n", error.as_ref()?))
    })
}

/// Parses the reply of an instance.
fn parsed<T: DeserializeOwned>(reply: &[u8]) -> Result<T, String> {
    let objects = reply.iter().filter(|byte| **byte == b'{').count();
    if objects > MAX_REPLY_OBJECTS {
        return Err(format!(
            "the reply has {objects} objects, more than the limit of {MAX_REPLY_OBJECTS}"
        ));
    }
    let not_json = |error: serde_json::Error| format!("the reply is not valid: {error}");
    let value: Value = serde_json::from_slice(reply).map_err(not_json)?;
    if !value.is_object() || !is_plausible(&value) {
        return Err(
            "the reply is not valid: it is not an object, or a number is too large".to_owned(),
        );
    }
    read(value).map_err(not_json)
}

/// True if every number in the reply is small enough to be added.
fn is_plausible(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|of| of.abs() <= MAX_NUMBER),
        Value::Array(elements) => elements.iter().all(is_plausible),
        Value::Object(members) => members.values().all(is_plausible),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

impl Adapt for Status {}
impl Adapt for Timeline {}
impl Adapt for Heatmap {}
impl Adapt for GaugeTimeline {}
impl Adapt for Sparklines {}
impl Adapt for Storms {}
impl Adapt for Stalls {}
impl Adapt for Annotations {}
impl Adapt for Listed<Pools> {}
impl Adapt for Listed<Servers> {}
impl Adapt for Topology {}
impl Adapt for Configuration {}

impl Adapt for Tick {
    fn adapt(&mut self, asked: &Asked) {
        if let Some(second) = self.second.as_mut().filter(|_| !asked.has_distributions) {
            second.distribution = None;
            second.max_ms = None;
        }
    }
}

impl Adapt for Shapes {
    fn adapt(&mut self, asked: &Asked) {
        self.keep(asked.sort, asked.limit_or(DEFAULT_LIMIT));
        if !asked.has_distributions {
            self.drop_distributions();
        }
    }
}

impl Adapt for Namespaces {
    fn adapt(&mut self, asked: &Asked) {
        self.keep(asked.limit_or(DEFAULT_LIMIT));
        if !asked.has_distributions {
            self.drop_distributions();
        }
    }
}

impl Adapt for Report {
    fn omission(&self) -> Option<String> {
        self.changes.omission()
    }

    fn adapt(&mut self, asked: &Asked) {
        self.keep(REPORTED_SHAPES);
        self.changes.adapt(asked);
        if !asked.has_distributions {
            for server in &mut self.servers {
                server.distribution = None;
            }
        }
    }
}

impl Adapt for Shape {
    fn adapt(&mut self, asked: &Asked) {
        if !asked.has_distributions {
            self.drop_inner_distributions();
        }
    }
}

impl Adapt for HeatmapShapes {
    fn adapt(&mut self, asked: &Asked) {
        /// Number of listed shapes if the request has no `limit`.
        const DEFAULT_SHAPES: usize = 20;
        self.keep(asked.limit_or(DEFAULT_SHAPES));
    }
}

impl Adapt for SlowOperations {
    fn adapt(&mut self, asked: &Asked) {
        self.operations.truncate(asked.limit_or(DEFAULT_SLOW));
    }
}

impl Adapt for Clients {
    fn adapt(&mut self, asked: &Asked) {
        self.clients.truncate(asked.limit_or(DEFAULT_LIMIT));
    }
}

impl Adapt for Changes {
    fn omission(&self) -> Option<String> {
        self.incomparable()
            .map(|reason| format!("not compared: {reason}"))
    }

    fn adapt(&mut self, asked: &Asked) {
        let figures = |span: &Option<seawall_api::Span>| span.as_ref()?.figures.clone();
        let kept = (figures(&self.baseline), figures(&self.now));
        compare_merged(self);
        if asked.has_distributions {
            if let Some(span) = &mut self.baseline {
                span.figures = kept.0;
            }
            if let Some(span) = &mut self.now {
                span.figures = kept.1;
            }
        }
    }
}
