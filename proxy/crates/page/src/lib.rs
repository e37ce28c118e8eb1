//! The files of the dashboard and of the HTML report, embedded in the binary. Their source is the
//! folder `proxy/dashboard/`. The admin address serves the files of the dashboard one by one. A
//! report contains the modules and styles that it shares with the dashboard, so both draw the same
//! charts.

/// A file of the dashboard or of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// The name, without a folder.
    pub name: &'static str,
    /// The content: UTF-8, as in the repository.
    pub content: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(File {
            name: $name,
            content: include_str!(concat!("../../../dashboard/", $name)),
        }),*]
    };
}

/// The files of the dashboard, which the admin address serves. They are sorted by name.
pub const DASHBOARD: [File; 22] = files![
    "api.js",
    "app.js",
    "chart.js",
    "charts.css",
    "distribution.js",
    "dom.js",
    "format.js",
    "heatmap.js",
    "icon.svg",
    "index.html",
    "live.js",
    "scale.js",
    "screens.css",
    "state.js",
    "style.css",
    "tables.css",
    "view-events.js",
    "view-heatmap.js",
    "view-overview.js",
    "view-shape.js",
    "view-shapes.js",
    "view-state.js",
];

/// The script that starts the modules of a report ([`REPORT_MODULES`]).
pub const REPORT_SCRIPT: File = {
    let [file] = files!["report-start.js"];
    file
};

/// The modules of a report. Each module imports only earlier modules. The last module draws the
/// report.
pub const REPORT_MODULES: [File; 13] = files![
    "dom.js",
    "format.js",
    "scale.js",
    "chart.js",
    "distribution.js",
    "heatmap.js",
    "api.js",
    "state.js",
    "view-shape.js",
    "view-shapes.js",
    "view-events.js",
    "view-state.js",
    "report.js",
];

/// The styles of a report, in the order in which they apply.
pub const REPORT_STYLES: [File; 5] = files![
    "style.css",
    "charts.css",
    "tables.css",
    "screens.css",
    "report.css",
];

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    /// The modules that a module imports.
    fn imports(file: &File) -> Vec<&'static str> {
        let lines = file.content.lines();
        let lines = lines.filter(|line| !line.trim_start().starts_with('*'));
        let names = lines.filter_map(|line| line.split_once(" from \"./"));
        names
            .map(|(_, name)| name.split('"').next().unwrap())
            .collect()
    }

    #[test]
    fn all_files_of_the_dashboard_folder_except_type_declarations_are_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard");
        let names = fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // Files that end in `.d.ts` declare types for `tsc`. Browsers do not load them, so they are
        // not embedded.
        let names: BTreeSet<_> = names.filter(|name| !name.ends_with(".d.ts")).collect();
        let embedded = DASHBOARD.iter().chain([&REPORT_SCRIPT]);
        let embedded = embedded.chain(&REPORT_MODULES).chain(&REPORT_STYLES);
        let embedded: BTreeSet<_> = embedded.map(|file| file.name.to_owned()).collect();
        assert_eq!(names, embedded);
    }

    #[test]
    fn every_module_that_the_dashboard_imports_is_served() {
        let names = DASHBOARD.map(|file| file.name);
        let mut found = 0;
        for file in DASHBOARD.iter().filter(|file| file.name.ends_with(".js")) {
            for name in imports(file) {
                assert!(names.contains(&name), "{}: {name}", file.name);
                found += 1;
            }
        }
        assert!(found >= 20, "{found}");
    }

    #[test]
    fn each_module_of_a_report_imports_only_modules_that_are_listed_before_it() {
        let mut earlier = BTreeSet::new();
        for file in &REPORT_MODULES {
            for name in imports(file) {
                assert!(earlier.contains(name), "{}: {name}", file.name);
            }
            earlier.insert(file.name);
        }
    }
}
