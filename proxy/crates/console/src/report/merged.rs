//! The merged report of several instances.

use futures_util::future::join_all;
use seawall_api::{
    AdminClient, Instance, Report, add_reply, compare_merged, with_address, with_distributions,
};

use crate::{admin_client::InstanceFailure, exit::Exit, fleet::Fleet};

/// The merged report of several instances.
pub(super) struct Merged {
    /// The sum of the reports; `None` if no instance sent a report.
    pub(super) report: Option<Report>,
    /// All instances. An instance whose report is not part of the sum has an error.
    pub(super) instances: Vec<Instance>,
    /// [`Exit::Usage`] if a request failed because of the arguments, for example because an
    /// instance refused the token; otherwise [`Exit::Unavailable`] if an instance has an error.
    pub(super) exit: Exit,
}

/// Requests the report of each instance, and merges the reports.
pub(super) async fn fetch(fleet: &Fleet, path: &str) -> Merged {
    let path = with_distributions(path);
    let reports = fleet.clients().iter().map(async |client| {
        let report = fetch_one(client, &path).await;
        (client.address(), report)
    });
    merged(join_all(reports).await)
}

async fn fetch_one(client: &AdminClient, path: &str) -> Result<Report, InstanceFailure> {
    let response = client.ask_for_json(path).await?;
    Report::read(response).map_err(|error| InstanceFailure::of_reply(error.to_string()))
}

fn merged(reports: Vec<(&str, Result<Report, InstanceFailure>)>) -> Merged {
    let mut merged = None;
    let mut exit = Exit::Success;
    let instances = reports.into_iter().map(|(address, report)| {
        let mut instance = Instance {
            address: address.to_owned(),
            ..Instance::default()
        };
        let failure = match report {
            Err(failure) => Some(failure),
            Ok(report) => {
                instance.operations = report.status.operations;
                instance.uptime_seconds = report.status.uptime_seconds;
                instance.version.clone_from(&report.status.version);
                instance.incomparable = report.changes.incomparable().map(str::to_owned);
                let added = add_reply(&mut merged, address, report);
                added.map_err(InstanceFailure::of_reply).err()
            }
        };
        if let Some(failure) = failure {
            instance.error = Some(with_address(address, &failure.message));
            if exit != Exit::Usage {
                exit = failure.exit;
            }
        }
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
    Merged {
        report: merged,
        instances,
        exit,
    }
}

#[cfg(test)]
mod tests {
    use seawall_api::ClientError;

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
            let merged = merged(reports);
            let merged = Report {
                instances: merged.instances,
                ..merged.report.unwrap()
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
                Err(InstanceFailure::from(ClientError::Unauthorized)),
            ),
            ("http://d:1", Ok(complete())),
        ];
        let Merged {
            report, instances, ..
        } = merged(reports);
        let mut merged = report.unwrap();
        assert_eq!(merged.operations(), 2 * complete().operations());
        let errors: Vec<_> = instances.iter().map(|i| i.error.is_some()).collect();
        assert_eq!(errors, [false, true, true, false]);
        merged.instances = instances;
        let text = text::report(&merged);
        assert!(text.contains("\ninstance http://a:1: seawall 0.1.0, up "));
        assert!(!text.contains("instance http://c:1"), "{text}");
        let warning = "incomplete figures: http://c:1: the admin address requires a valid token: \
                       use --token-file";
        assert!(text.contains(&format!("\n! {warning}\n")), "{text}");
        assert!(html::report(&merged).unwrap().contains(warning));
    }

    #[test]
    fn exit_status_is_usage_if_an_instance_refused_the_token_and_unavailable_for_other_errors() {
        let failed = |error: ClientError| -> Result<Report, InstanceFailure> { Err(error.into()) };
        let refused = || failed(ClientError::Unauthorized);
        let broken = || failed(ClientError::Broken(String::new()));
        let mut incomplete = complete();
        incomplete.shapes[0].distribution = None;
        let cases = [
            ([Ok(complete()), Ok(complete())], Exit::Success),
            ([Ok(complete()), Ok(incomplete)], Exit::Unavailable),
            ([Ok(complete()), broken()], Exit::Unavailable),
            ([Ok(complete()), refused()], Exit::Usage),
            ([broken(), refused()], Exit::Usage),
            ([refused(), broken()], Exit::Usage),
        ];
        for (reports, exit) in cases {
            let reports = ["http://a:1", "http://b:1"].into_iter().zip(reports);
            assert_eq!(merged(reports.collect()).exit, exit);
        }
    }
}
