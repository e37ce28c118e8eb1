//! The merged report of several instances.

use futures_util::future::join_all;
use seawall_api::{
    AdminClient, Instance, Report, add_reply, compare_merged, with_address, with_distributions,
};

use crate::{admin_client, fleet::Fleet};

/// Requests the report of each instance, and merges the reports. Returns `None` if no instance sent
/// a report. An instance whose report could not be merged has an error.
pub(super) async fn fetch(fleet: &Fleet, path: &str) -> (Option<Report>, Vec<Instance>) {
    let path = with_distributions(path);
    let reports = fleet.clients().iter().map(async |client| {
        let report = fetch_one(client, &path).await;
        (client.address(), report)
    });
    merged(join_all(reports).await)
}

async fn fetch_one(client: &AdminClient, path: &str) -> Result<Report, String> {
    let response = client.ask_for_json(path).await;
    let response = response.map_err(|error| admin_client::message(&error))?;
    Report::read(response).map_err(|error| error.to_string())
}

fn merged(reports: Vec<(&str, Result<Report, String>)>) -> (Option<Report>, Vec<Instance>) {
    let mut merged = None;
    let instances = reports.into_iter().map(|(address, report)| {
        let mut instance = Instance {
            address: address.to_owned(),
            ..Instance::default()
        };
        let error = match report {
            Err(error) => Some(error),
            Ok(report) => {
                instance.operations = report.status.operations;
                instance.uptime_seconds = report.status.uptime_seconds;
                instance.version.clone_from(&report.status.version);
                instance.incomparable = report.changes.incomparable().map(str::to_owned);
                add_reply(&mut merged, address, report).err()
            }
        };
        instance.error = error.map(|error| with_address(address, &error));
        instance
    });
    let mut instances: Vec<_> = instances.collect();
    if let Some(report) = &mut merged {
        compare_merged(&mut report.changes);
    }
    // If no instance could compare its figures with a baseline, the changes of the merged report
    // contain the reason. So the reason is not repeated for each instance.
    if instances
        .iter()
        .all(|i| i.error.is_some() || i.incomparable.is_some())
    {
        instances.iter_mut().for_each(|i| i.incomparable = None);
    }
    (merged, instances)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{html, tests::report, text};

    /// The example report without its servers and its changes. Every remaining part has
    /// distributions, so the report can be merged.
    fn complete() -> Report {
        let mut report = report();
        report.servers.clear();
        report.changes = Default::default();
        report.status.version = "0.1.0".to_owned();
        report
    }

    /// If no instance has a baseline, the merged report gives the reason only once.
    #[test]
    fn merged_report_warns_of_an_instance_without_a_baseline_only_if_another_instance_has_one() {
        let report = |comparable| {
            let mut report = complete();
            report.changes.comparable = Some(comparable);
            report.changes.reason = Some("no data for the baseline".to_owned());
            report
        };
        let incomparable = |first, second| {
            let reports = vec![
                ("http://a:1", Ok(report(first))),
                ("http://b:1", Ok(report(second))),
            ];
            let (merged, instances) = merged(reports);
            let merged = Report {
                instances,
                ..merged.unwrap()
            };
            text::report(&merged)
                .contains("! changes do not include http://b:1: no data for the baseline")
        };
        assert!(incomparable(true, false));
        assert!(!incomparable(false, false));
        assert!(!incomparable(true, true));
    }

    #[test]
    fn a_report_without_latency_distributions_is_not_merged_and_its_instance_gets_an_error() {
        let mut incomplete = complete();
        incomplete.shapes[0].distribution = None;
        let reports = vec![
            ("http://a:1", Ok(complete())),
            ("http://b:1", Ok(incomplete)),
            (
                "http://c:1",
                Err("the admin address requires a valid token".to_owned()),
            ),
            ("http://d:1", Ok(complete())),
        ];
        let (merged, instances) = merged(reports);
        let mut merged = merged.unwrap();
        assert_eq!(merged.operations(), 2 * complete().operations());
        let errors: Vec<_> = instances.iter().map(|i| i.error.is_some()).collect();
        assert_eq!(errors, [false, true, true, false]);
        merged.instances = instances;
        let text = text::report(&merged);
        assert!(text.contains("\ninstance http://a:1: seawall 0.1.0, up "));
        assert!(!text.contains("instance http://c:1"), "{text}");
        let warning = "incomplete figures: http://c:1: the admin address requires a valid token";
        assert!(text.contains(&format!("\n! {warning}\n")), "{text}");
        assert!(html::report(&merged).unwrap().contains(warning));
    }
}
