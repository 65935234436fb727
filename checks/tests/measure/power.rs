//! Power by powertop, which a script stands in for, and what the report makes of it.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

/// Two programs of this machine that report a goodput, and what powertop is to measure.
const POWER: &str = r#"
name = "check"
repeats = 2
retries = 0
powertop_s = 1
[axes]
distance_km = [0, 100]
[[program]]
name = "tcp"
client = "sh -c 'echo goodput 20 Gbit/s; echo at {distance_km}'"
pattern = "goodput (?<goodput>[0-9]+) (?<goodput_unit>[A-Za-z/]+)"
[[program]]
name = "write"
client = "sh -c 'echo goodput 80 Gbit/s; echo at {distance_km}'"
pattern = "goodput (?<goodput>[0-9]+) (?<goodput_unit>[A-Za-z/]+)"
"#;

/// A report in the form of powertop 2.15: HEAD has the columns, and SHELL what a shell draws.
const REPORT: &str = "PowerTOP Version;2.15 ran at Fri Jun  7 10:00:00 2024\n\
    ____________________________________________________________________\n\
    \x20*  *  *   Overview of Software Power Consumers   *  *  *\n\n\
    Usage;Wakeups/s;GPU ops/s;Disk IO/s;GFX Wakeups/s;Category;DescriptionHEAD\n\
    \x20998.2 ms/s;  12.0;;;;Process;[PID 812] sh -c 'echo goodput'SHELL\n\
    \x20  3.1 ms/s;  80.1;;;;Interrupt;[7] sched(softirq)SHELL\n\n\
    ____________________________________________________________________\n\
    \x20*  *  *   Device Power Report   *  *  *\n\n";

impl Place {
    /// A directory of programs with what powertop's script needs and, if there is a `report`, a
    /// powertop that writes it.
    fn programs(&self, report: Option<&str>) -> String {
        let directory = self.runtime.path().join("programs");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        for name in ["sh", "mktemp", "cat", "rm"] {
            let program = ["/usr/bin", "/bin"].map(|place| Path::new(place).join(name));
            let program = program.iter().find(|program| program.exists()).expect(name);
            symlink(program, directory.join(name)).unwrap();
        }
        if let Some(report) = report {
            fs::write(directory.join("report"), report).unwrap();
            let script = directory.join("powertop");
            let text = "#!/bin/sh\n[ \"$2\" = --time=1 ] || exit 2\necho Preparing to take \
                        measurements >&2\ncat \"${0%/*}/report\" > \"${1#--csv=}\"\n";
            fs::write(&script, text).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        }
        directory.display().to_string()
    }

    fn with_powertop(&self, report: Option<&str>, line: &str) -> Finished {
        let mut command = self.runtime.longhaul_inside(line);
        Program::start_group(command.env("PATH", self.programs(report))).finish(LIMIT)
    }
}

#[test]
fn of_powertop_gives_energy_per_bit_beside_the_published_one() {
    let place = Place::new(POWER);
    let report = REPORT.replace("HEAD", ";PW Estimate").replace("SHELL", ";  1.40 W");
    let done = place.with_powertop(Some(&report), "measure x.toml --out o --json");
    assert_eq!(json(&done)["measured"], 8, "{done}");
    for (key, result) in place.results() {
        assert_eq!(result["values"]["power_powertop_w"], 1.4, "{key}: {result}");
    }
    let told = place.with_powertop(None, "report o/results.jsonl --power tcp --json");
    let told = json(&told);
    let savings = told["savings"].as_array().expect("savings");
    let of_powertop: Vec<&Value> =
        savings.iter().filter(|saving| saving["power"] == "powertop").collect();
    assert_eq!(of_powertop.len(), 2, "one for each distance: {told}");
    for saving in of_powertop {
        let power = |side: &str| saving[side]["power_w"].as_f64().expect("watts");
        // 23.6 W of the NIC are added.
        assert!((power("baseline") - 25.0).abs() < 1e-9 && (power("own") - 25.0).abs() < 1e-9);
        assert_eq!(saving["own"]["per_bit_nj"], 0.3125);
        assert_eq!(saving["reduction_percent"], 75.0);
    }
    assert_eq!(told["published"][0]["reduction_percent"], 99.93);
    assert_eq!(told["published"][0]["software_ws"], 2946.5);
    let text = place.with_powertop(None, "report o/results.jsonl --power tcp").stdout;
    for part in ["Energy per bit against program = tcp", "75.00 %", "99.93 %", "23.6 W of the NIC"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let unknown = place.with_powertop(None, "report o/results.jsonl --power iperf");
    assert_eq!(unknown.status.code(), Some(1), "{unknown}");
    assert!(
        unknown.stderr.contains("no run has program = iperf; there is tcp, write"),
        "{unknown}"
    );
}

#[test]
fn by_a_powertop_that_is_missing_or_tells_none_is_refused_in_a_line() {
    let place = Place::new(POWER);
    let powerless = REPORT.replace("HEAD", "").replace("SHELL", "");
    for (report, part) in [
        (None, "powertop: it is not installed: apt-get install powertop"),
        (Some(powerless.as_str()), "neither battery nor RAPL"),
    ] {
        let refused = place.with_powertop(report, "measure x.toml --out o");
        assert_eq!(refused.status.code(), Some(1), "{refused}");
        let line = refused.stderr.lines().find(|line| line.contains("powertop_s: "));
        assert!(line.is_some_and(|line| line.contains(part)), "{refused}");
        assert_eq!(place.results().len(), 0, "{refused}");
    }
}

#[test]
fn that_nobody_measured_can_be_stated() {
    let place = Place::new(&POWER.replace("powertop_s = 1\n", ""));
    let done = place.with_powertop(None, "measure x.toml --out o --json");
    assert_eq!(json(&done)["measured"], 8, "{done}");
    let stated = "report o/results.jsonl --power program=tcp --watts 25 --watts write=50";
    let told = json(&place.with_powertop(None, &format!("{stated} --json")));
    // Machines with meters record power, which goes first.
    let savings = told["savings"].as_array().expect("savings");
    if savings.iter().all(|saving| saving["power"] == "stated") {
        assert_eq!(savings.len(), 2, "{told}");
        assert_eq!(savings[0]["reduction_percent"], 50.0, "{told}");
        let none = place.with_powertop(None, "report o/results.jsonl --power tcp");
        assert_eq!(none.status.code(), Some(1), "{none}");
        assert!(none.stderr.contains("no run has a recorded power"), "{none}");
        assert!(none.stderr.contains("--watts"), "{none}");
    }
}
