//! The environment variable that overrides the level of the log.

use std::env;

use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// Environment variable that overrides the log level, with the syntax of `tracing`'s filters.
const LOG_VARIABLE: &str = "SEAWALL_LOG";

/// The filter in the environment variable `SEAWALL_LOG`. `None` if the variable is not set or is
/// empty: the configured level then applies.
///
/// # Errors
/// A message, if the variable has no valid filter.
pub(super) fn variable() -> Result<Option<String>, String> {
    match env::var_os(LOG_VARIABLE) {
        Some(text) if !text.is_empty() => parsed(&text.to_string_lossy()).map(Some),
        Some(_) | None => Ok(None),
    }
}

/// Checks a filter, and returns it as the log library shows it.
///
/// # Errors
/// A message, if the filter is invalid or one of its directives sets no level. The library treats a
/// word that is not a level, such as `warning`, as a target. It then logs only this target.
fn parsed(text: &str) -> Result<String, String> {
    let sets_level = |directive: &str| {
        let after_target = directive.rsplit_once('=').map(|(_, level)| level);
        let level = after_target.unwrap_or(directive);
        !level.is_empty() && level.parse::<LevelFilter>().is_ok()
    };
    match EnvFilter::try_new(text) {
        Ok(filter) if text.split(',').all(sets_level) => Ok(filter.to_string()),
        Ok(_) | Err(_) => Err(format!(
            "{LOG_VARIABLE} = {text:?}: must be a level (error, warn, info, debug or trace), \
             directives target=level, or both, separated by commas"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_filter_may_have_a_level_and_levels_of_targets() {
        for filter in ["warn", "DEBUG", "seawall=info", "info,seawall::pool=trace"] {
            assert!(parsed(filter).is_ok(), "{filter}");
        }
        assert_eq!(parsed("seawall=info").unwrap(), "seawall=info");
    }

    #[test]
    fn a_log_filter_that_is_invalid_or_sets_no_level_is_refused() {
        for filter in [
            "warning",
            "seawall",
            "seawall=",
            "seawall=warning",
            "warning,seawall::pool=debug",
            ",",
            "[",
            " warn",
        ] {
            let refused = parsed(filter).unwrap_err();
            let expected = format!(
                "SEAWALL_LOG = {filter:?}: must be a level (error, warn, info, debug or trace)"
            );
            assert!(refused.starts_with(&expected), "{refused}");
        }
    }
}
