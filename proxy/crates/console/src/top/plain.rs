//! The output for `--once` and for a standard output that is not a terminal: the state of the
//! proxy, the alerts and one table of shapes, without colors.

use super::{model::Model, rows, view::alert_texts};
use crate::figures::{count, float, printable, table, uptime};

pub(super) fn lines(model: &Model) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(status) = &model.status {
        let servers = status.server_connections;
        lines.push(format!(
            "seawall {} {}: up {}, {} clients, {} server connections ({} in use), wait queue {}, {} operations",
            printable(&status.version),
            printable(&model.address),
            uptime(status.uptime_seconds),
            status.clients,
            servers.total(),
            servers.in_use,
            status.wait_queue,
            count(float(status.operations)),
        ));
    }
    lines.extend(alert_texts(model).into_iter().map(|(_, text)| text));
    lines.push(format!("shapes, {}", model.period()));
    let headings = rows::HEADINGS.map(|(heading, _)| heading);
    lines.extend(table(&headings, &rows::shapes(model)));
    let other = &model.shapes.other;
    if other.count > 0 {
        let (operations, errors) = (count(float(other.count)), count(float(other.errors)));
        lines.push(format!(
            "and {operations} operations of other shapes, {errors} errors"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::tests::model;

    #[test]
    fn plain_output_is_a_status_line_then_alerts_then_one_table() {
        let mut model = model();
        model.shapes.other.count = 1_200;
        let lines = lines(&model);
        assert!(
            lines[0]
                .starts_with("seawall 0.1.0 http://127.0.0.1:9909: up 2 h 01 min, 1312 clients")
        );
        assert!(lines[1].starts_with("stalls every 60 s"));
        assert_eq!(lines[2], "shapes, last 1m");
        assert!(lines[3].trim_start().starts_with("share"));
        assert_eq!(lines.len(), 4 + model.shapes.shapes.len() + 1);
        assert!(lines.last().unwrap().starts_with("and 1.2k operations"));
        assert!(!lines.concat().contains('\u{1b}'));
    }
}
