//! Replies to the command `seawall`, which clients run in the database `admin`. The command offers
//! functions of the HTTP API: descriptions of the state, and a reload of the configuration.

use std::sync::Arc;

use futures_util::FutureExt as _;

use crate::{
    admin::{self, AdminState},
    client::Reporter,
};
use seawall_api::Topic;

/// Returns the reporter that replies to the command `seawall`: it describes `state`, or reloads the
/// configuration.
pub(super) fn reporter(state: Arc<AdminState>) -> Reporter {
    Reporter::new(move |command| {
        let state = Arc::clone(&state);
        let reply = async move {
            if let Some(reply) = admin::describe(&state, command.topic, command.limit).await? {
                return Ok(reply);
            }
            debug_assert_eq!(command.topic, Topic::Reload, "reload is the only action");
            let reload = admin::request_reload(&state, command.is_dry_run).await;
            let reload = reload.ok_or(admin::CANNOT_RELOAD)?;
            match reload.problems.is_empty() {
                true => admin::to_bson(&reload),
                false => {
                    let problems = reload.problems.join("; ");
                    Err(format!("could not reload the configuration: {problems}"))
                }
            }
        };
        reply.boxed()
    })
}
