//! Annotations: events, such as a deployment, that explain why measured values have changed.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    extract::{Query, State},
    http::StatusCode,
};
use seawall_api::{Annotations, NewAnnotation};
use seawall_insight::{AnnotationKind, MAX_ANNOTATION_BYTES};

use super::{
    AdminState, Refused, bad_request,
    insight::{InsightParameters, annotations_of},
};

/// Maximum age of an added event: the time for which the history is kept.
const OLDEST: Duration = Duration::from_secs(8 * 86_400);

/// An added event may be at most this far in the future, because the clocks of machines differ.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

pub(super) async fn list(
    State(state): State<Arc<AdminState>>,
    Query(parameters): Query<InsightParameters>,
) -> Result<Json<Annotations>, Refused> {
    let (from, to) = parameters.period(state.insight.now())?;
    Ok(Json(Annotations {
        annotations: annotations_of(&state, from, to),
    }))
}

/// Adds an annotation of the kind `deploy`. Seawall detects the events of all other kinds itself.
pub(super) async fn add(
    State(state): State<Arc<AdminState>>,
    Json(new): Json<NewAnnotation>,
) -> Result<StatusCode, Refused> {
    let annotation = checked(&new, state.insight.now())?;
    state.insight.annotate(annotation);
    Ok(StatusCode::CREATED)
}

fn checked(new: &NewAnnotation, now: SystemTime) -> Result<seawall_insight::Annotation, Refused> {
    let kind = AnnotationKind::Deploy;
    if new.kind.as_deref().is_some_and(|of| of != kind.as_str()) {
        return Err(bad_request("kind must be deploy".to_owned()));
    }
    if new.text.trim().is_empty() || new.text.len() > MAX_ANNOTATION_BYTES {
        let wrong =
            format!("text must have 1 to {MAX_ANNOTATION_BYTES} bytes, and not only white space");
        return Err(bad_request(wrong));
    }
    let at = match new.at {
        None => now,
        Some(seconds) => {
            let since = Duration::try_from_secs_f64(seconds).ok();
            let at = since.and_then(|since| UNIX_EPOCH.checked_add(since));
            let earliest = now.checked_sub(OLDEST).unwrap_or(UNIX_EPOCH);
            let is_near = |at: &SystemTime| *at >= earliest && *at <= now + CLOCK_DIFFERENCE;
            at.filter(is_near)
                .ok_or_else(|| bad_request("at must be within the last eight days".to_owned()))?
        }
    };
    Ok(seawall_insight::Annotation::new(kind, at, None, &new.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deploy_annotations_of_the_last_eight_days_with_a_short_text_are_accepted() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_200_000);
        let new = |text: &str, at, kind: Option<&str>| NewAnnotation {
            at,
            kind: kind.map(str::to_owned),
            text: text.to_owned(),
        };
        let longest = "a".repeat(MAX_ANNOTATION_BYTES);
        for (new, is_accepted) in [
            (new("v1", None, None), true),
            (new(&longest, Some(1_795_100_000.5), Some("deploy")), true),
            (new(&format!("{longest}b"), None, None), false),
            (new(" ", None, None), false),
            (new("v1", None, Some("storm")), false),
            (new("v1", Some(1_795_200_100.0), None), false),
            (new("v1", Some(0.0), None), false),
            (new("v1", Some(-1.0), None), false),
            (new("v1", Some(f64::MAX), None), false),
        ] {
            assert_eq!(checked(&new, now).is_ok(), is_accepted, "{new:?}");
        }
    }
}
