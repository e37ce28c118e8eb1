//! Merges the responses of several instances.

use super::model::{HeatResponse, Responses, covered_seconds};
use crate::{admin_client::InstanceFailure, exit::Exit, figures::float};
use seawall_api::{Annotations, Changes, Merge, add_reply, compare_merged, with_address};

/// Merges the responses of all instances, each given with its address. The message of the failure
/// says how many instances have errors, and gives the first error. Its exit status is
/// [`Exit::Usage`] if a request failed because of the arguments, for example because an instance
/// refused the token.
pub(super) fn merged(all: Vec<(&str, Responses)>) -> Responses {
    let instances = all.len();
    let mut merged = Responses::default();
    let mut errors = Vec::new();
    let mut incomparable = Vec::new();
    for (address, mut responses) in all {
        let is_incomparable = |changes: &mut Changes| changes.incomparable().is_some();
        if let Some(changes) = responses.changes.take_if(is_incomparable) {
            incomparable.push((address, changes));
        }
        if let Some(failure) = take(&mut merged, address, responses) {
            let message = with_address(address, &failure.message);
            errors.push((address, InstanceFailure { message, ..failure }));
        }
    }
    match &mut merged.changes {
        Some(changes) => {
            compare_merged(changes);
            for (address, changes) in &incomparable {
                // An instance that already has an error is not counted a second time.
                if errors.iter().all(|(failed, _)| failed != address) {
                    let reason = changes.incomparable().unwrap_or_default();
                    let message = format!("{address}: not compared: {reason}");
                    errors.push((address, InstanceFailure::of_reply(message)));
                }
            }
        }
        // If no instance could compare its figures with a baseline, the changes of the last
        // instance are shown, because they contain the reason.
        None => merged.changes = incomparable.pop().map(|(_, changes)| changes),
    }
    merged.failure = errors.first().map(|(_, first)| {
        let (failed, first) = (errors.len(), &first.message);
        let mut exits = errors.iter().map(|(_, failure)| failure.exit);
        InstanceFailure {
            message: format!("errors at {failed} of {instances} instances; first error: {first}"),
            exit: match exits.any(|exit| exit == Exit::Usage) {
                true => Exit::Usage,
                false => Exit::Unavailable,
            },
        }
    });
    merged
}

/// Adds the responses of one instance. Returns its first failure, if any.
fn take(merged: &mut Responses, address: &str, responses: Responses) -> Option<InstanceFailure> {
    fn member<T: Merge>(
        sum: &mut Option<T>,
        address: &str,
        reply: Option<T>,
        first: &mut Option<InstanceFailure>,
    ) {
        if let Some(Err(refusal)) = reply.map(|reply| add_reply(sum, address, reply)) {
            first.get_or_insert(InstanceFailure::of_reply(refusal));
        }
    }
    let mut first = responses.failure;
    merged.operations.extend(responses.operations);
    if let Some(shapes) = responses.shapes.as_ref().filter(|of| of.is_mergeable()) {
        let seconds = covered_seconds(shapes, responses.status.as_ref());
        for shape in &shapes.shapes {
            let rate = merged.rates.entry(shape.id.clone()).or_default();
            *rate += float(shape.count) / seconds;
        }
    }
    member(&mut merged.status, address, responses.status, &mut first);
    member(&mut merged.shapes, address, responses.shapes, &mut first);
    member(&mut merged.shape, address, responses.shape, &mut first);
    member(&mut merged.storms, address, responses.storms, &mut first);
    member(&mut merged.stalls, address, responses.stalls, &mut first);
    member(&mut merged.changes, address, responses.changes, &mut first);
    member(&mut merged.pools, address, responses.pools, &mut first);
    member(&mut merged.heatmap, address, responses.heatmap, &mut first);
    first
}

impl Merge for HeatResponse {
    fn merge(&mut self, other: Self) {
        self.heatmap.merge(other.heatmap);
        let mut all = Annotations {
            annotations: std::mem::take(&mut self.annotations),
        };
        all.merge(Annotations {
            annotations: other.annotations,
        });
        self.annotations = all.annotations;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seawall_api::{Bucket, ClientError, Other, Shape, Shapes, Span, SpanFigures, Status};

    use super::*;
    use crate::top::model::{Counted, Model};

    fn responses(address: &str, clients: u64) -> Responses {
        let counted = Counted {
            at: Duration::ZERO,
            operations: 10,
            uptime_seconds: 1.0,
        };
        Responses {
            status: Some(Status {
                clients,
                ..Status::default()
            }),
            operations: [(address.to_owned(), counted)].into(),
            ..Responses::default()
        }
    }

    #[test]
    fn errors_of_some_instances_do_not_hide_the_figures_of_other_instances() {
        let (a, b, c) = ("http://a:1", "http://b:1", "http://c:1");
        let failed = Responses {
            failure: Some(ClientError::Unauthorized.into()),
            ..Responses::default()
        };
        let all = vec![(a, responses(a, 3)), (b, failed), (c, responses(c, 4))];
        let merged = merged(all);
        assert_eq!(merged.status.unwrap().clients, 7);
        assert_eq!(merged.operations.len(), 2);
        assert_eq!(
            merged.failure.unwrap().message,
            "errors at 1 of 3 instances; first error: \
             http://b:1: the admin address requires a valid token: use --token-file"
        );
    }

    #[test]
    fn exit_status_is_usage_if_an_instance_refused_the_token_and_unavailable_for_other_errors() {
        let (a, b) = ("http://a:1", "http://b:1");
        let failed = |error: ClientError| Responses {
            failure: Some(error.into()),
            ..Responses::default()
        };
        let refused = || failed(ClientError::Unauthorized);
        let broken = || failed(ClientError::Broken(String::new()));
        let cases = [
            ([responses(a, 1), responses(b, 1)], None),
            ([responses(a, 1), broken()], Some(Exit::Unavailable)),
            ([responses(a, 1), refused()], Some(Exit::Usage)),
            ([broken(), refused()], Some(Exit::Usage)),
            ([refused(), broken()], Some(Exit::Usage)),
        ];
        for (all, exit) in cases {
            let merged = merged([a, b].into_iter().zip(all).collect());
            assert_eq!(merged.failure.map(|failure| failure.exit), exit);
        }
    }

    /// The figures of an instance since its start cover the uptime of this instance. Here the
    /// uptimes are 100 s and 10 s.
    #[test]
    fn rate_of_a_shape_is_the_sum_of_the_rates_of_all_instances() {
        let since_start = |uptime_seconds| {
            let shape = Shape {
                id: "s".to_owned(),
                count: 1_000,
                distribution: Some(Vec::new()),
                ..Shape::default()
            };
            Responses {
                status: Some(Status {
                    uptime_seconds,
                    ..Status::default()
                }),
                shapes: Some(Shapes {
                    shapes: vec![shape],
                    ..Shapes::default()
                }),
                ..Responses::default()
            }
        };
        let all = vec![
            ("http://a:1", since_start(100.0)),
            ("http://b:1", since_start(10.0)),
        ];
        let mut model = Model::default();
        model.take(merged(all));
        assert_eq!(model.rate_of(model.rows()[0]), 110.0);
        model.take(since_start(100.0));
        assert_eq!(model.rate_of(model.rows()[0]), 10.0);
    }

    /// A baseline is the earlier period with which the current period is compared. If no instance
    /// has data for it, this is not an error: the pane of changes then shows why nothing was
    /// compared.
    #[test]
    fn error_names_an_instance_without_a_baseline_only_if_another_instance_has_one() {
        let bucket = Bucket {
            count: 1_000,
            gt_seconds: 0.0,
            le_seconds: 0.01,
        };
        let all = Other {
            count: bucket.count,
            distribution: Some(vec![bucket]),
            ..Other::default()
        };
        let complete = Span {
            seconds: 100.0,
            figures: Some(SpanFigures {
                all,
                ..SpanFigures::default()
            }),
            ..Span::default()
        };
        let reply = |reason: Option<&str>| Responses {
            changes: Some(Changes {
                comparable: Some(reason.is_none()),
                reason: reason.map(str::to_owned),
                baseline: Some(complete.clone()),
                now: Some(complete.clone()),
                ..Changes::default()
            }),
            ..responses("http://a:1", 1)
        };
        let reason = Some("no data for the baseline");
        let of = |first, second| {
            let all = vec![("http://a:1", reply(first)), ("http://b:1", reply(second))];
            let merged = merged(all);
            let incomparable = merged.changes.unwrap().incomparable().map(str::to_owned);
            (incomparable, merged.failure.map(|failure| failure.message))
        };
        let error = "errors at 1 of 2 instances; first error: \
                     http://b:1: not compared: no data for the baseline";
        assert_eq!(of(None, reason), (None, Some(error.to_owned())));
        assert_eq!(of(reason, reason), (reason.map(str::to_owned), None));
        assert_eq!(of(None, None), (None, None));
        let failed = Responses {
            failure: Some(InstanceFailure::of_reply("no reply".to_owned())),
            ..reply(reason)
        };
        let merged = merged(vec![("http://a:1", reply(None)), ("http://b:1", failed)]);
        let expected = "errors at 1 of 2 instances; first error: http://b:1: no reply";
        assert_eq!(merged.failure.unwrap().message, expected);
    }
}
