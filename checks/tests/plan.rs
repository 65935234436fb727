//! `longhaul plan` at the command line: the three forms of its output agree, invalid input is
//! refused in one line, and two instances measure the path between them.

use longhaul_checks::{Finished, Program, RuntimeDir, free_tcp_port};
use serde_json::Value;
use std::fs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn plan(arguments: &str) -> Finished {
    let runtime = RuntimeDir::new();
    Program::start(&mut runtime.longhaul(&format!("plan {arguments}"))).finish(LIMIT)
}

fn json(arguments: &str) -> Value {
    let done = plan(&format!("{arguments} --json"));
    assert_eq!(done.status.code(), Some(0), "{done}");
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

/// Fails unless stderr alone has one line, which contains all of `parts`.
fn assert_refused(done: &Finished, code: i32, parts: &[&str]) {
    assert_eq!(done.status.code(), Some(code), "{done}");
    assert_eq!(done.stdout, "", "{done}");
    assert_eq!(done.stderr.lines().count(), 1, "{done}");
    assert!(done.stderr.starts_with("longhaul"), "{done}");
    for part in parts {
        assert!(done.stderr.contains(part), "{part:?} is missing: {done}");
    }
}

mod output {
    use super::*;

    const EXAMPLE: &str = "--distance 380km --rate 100G --op read --sizes 4K..8M";

    #[test]
    fn text_names_the_limit_of_each_size_what_to_set_and_what_goes_wrong() {
        let done = plan(&format!("{EXAMPLE} --use storage"));
        assert_eq!(done.status.code(), Some(0), "{done}");
        for part in [
            "380 km of fibre, round trip 3.8 ms, 100 Gbit/s",
            "47.5 MB are in flight",
            "11369 messages",
            "  4 KiB    0.138  outstanding READs",
            "  8 MiB     98.0  line rate",
            "What to set: ",
            "roce_adp_retrans_en=0x0",
            "ib_read_bw -d \"$DEV\" -q 640",
            "nvmf_create_transport -t RDMA",
            "Warnings",
            "PFC cannot keep this path free of drops",
        ] {
            assert!(done.stdout.contains(part), "{part:?} is missing: {done}");
        }
        assert!(done.stdout.lines().all(|line| line == line.trim_end()), "trailing blanks: {done}");
    }

    #[test]
    fn json_says_the_same() {
        let plan = json(EXAMPLE);
        assert_eq!(plan["schema"], "longhaul-plan/1");
        let rows = plan["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 12);
        assert_eq!((&rows[0]["size"], &rows[11]["size"]), (&4096.into(), &8_388_608.into()));
        assert_eq!(rows[0]["prediction"]["limit"], "outstanding_reads");
        assert_eq!(rows[0]["needs"]["qps"], 640);
        let gbps = rows[11]["prediction"]["goodput_bps"].as_f64().unwrap() / 1e9;
        assert!((97.9..98.1).contains(&gbps), "{gbps}");
        assert!(plan["steps"].as_array().unwrap().len() >= 6);
        assert!(plan["nic"]["outstanding_reads"] == 16 && plan["request"]["op"] == "read");
    }

    #[test]
    fn a_round_trip_stands_for_a_distance() {
        assert_eq!(
            json("--rtt 3.8ms --rate 100G")["rows"],
            json("--distance 380km --rate 100G")["rows"]
        );
    }

    #[test]
    fn the_plot_is_well_formed_and_has_a_curve_for_each_limit() {
        let runtime = RuntimeDir::new();
        let file = runtime.path().join("plan.svg");
        let done = plan(&format!("{EXAMPLE} --svg {}", file.display()));
        assert_eq!(done.status.code(), Some(0), "{done}");
        let svg = fs::read_to_string(&file).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for part in ["limit: outstanding READs", "limit: line rate", "goodput (Gbit/s)", "64 KiB"] {
            assert!(svg.contains(part), "{part}");
        }
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn a_users_own_nic_is_read() {
        let runtime = RuntimeDir::new();
        let file = runtime.path().join("mine.toml");
        let rxe = concat!(env!("CARGO_MANIFEST_DIR"), "/../labs/nics/rxe.toml");
        let text = fs::read_to_string(rxe).unwrap().replace("\"rxe\"", "\"mine\"");
        fs::write(&file, text.replace("outstanding_psns = 129", "outstanding_psns = 1024"))
            .unwrap();
        let arguments =
            format!("--distance 1000km --rate 10G --sizes 64K --nic {}", file.display());
        let (mine, rxe) =
            (json(&arguments), json("--distance 1000km --rate 10G --sizes 64K --nic rxe"));
        let goodput = |plan: &Value| plan["rows"][0]["prediction"]["goodput_bps"].as_f64().unwrap();
        assert_eq!(mine["nic"]["name"], "mine");
        assert!((goodput(&mine) / goodput(&rxe) - 8.0).abs() < 0.5);
    }
}

mod bad_input {
    use super::*;

    #[test]
    fn values_that_make_no_sense_say_what_would() {
        for (arguments, parts) in [
            ("", ["--distance", "--rtt"]),
            ("--distance=-5km", ["'-5km'", "1000km"]),
            ("--distance 380", ["'380'", "km"]),
            ("--distance 1e9km", ["'1e9km'", "--distance"]),
            ("--distance 90000km", ["'90000km'", "longer than"]),
            ("--rtt -1ms", ["-1", ""]),
            ("--rtt 2h", ["'2h'", "ms"]),
            ("--rtt 5s", ["'5s'", "longer than 800 ms"]),
            ("--distance 1km --rtt 1ms", ["--distance", "--rtt"]),
            ("--distance 1km --rate 0", ["'0'", "10G"]),
            ("--distance 1km --rate=-1G", ["'-1G'", "10G"]),
            ("--distance 1km --loss 1", ["--loss", "0 to below 1"]),
            ("--distance 1km --loss=-0.1", ["'-0.1'", "0 to below 1"]),
            ("--distance 1km --mtu 1500", ["path MTU 1500", "2048 or 4096"]),
            ("--distance 1km --sizes 8M..4K", ["'8M..4K'", "4 KiB..8 MiB"]),
            ("--distance 1km --sizes 4K..4G", ["'4K..4G'", "2 GiB"]),
            ("--distance 1km --qps 0", ["'0'", "--qps"]),
            ("--distance 1km --tx-depth 0", ["'0'", "--tx-depth"]),
            ("--distance 1km --cq-mod 200", ["--cq-mod 200", "--tx-depth 128"]),
            ("--distance 1km --target 0", ["'0'", "--target"]),
            ("--distance 1km --rate 10G --target 20G", ["20 Gbit/s", "at most 9.8 Gbit/s of 10"]),
            ("--distance 1km --rate 10G --use telescope", ["--use telescope", "give a --target"]),
            ("--distance 1km --sizes 3 --target 9G", ["at most 2.94 Gbit/s", "larger messages"]),
            ("--distance 1km --rate 400G", ["--rate 400G", "--nic connectx6"]),
            ("--distance 1km --op atomic --sizes 4K", ["--sizes", "atomics are 8 bytes"]),
            ("--distance 1km --op fetch", ["'fetch'", "write, send, read or atomic"]),
            ("--distance 1km --use games", ["'games'", "storage"]),
            (
                "--distance 1km --nic connectx9",
                ["'connectx9'", "connectx6, connectx6-adaptive, connectx6-apn, rxe"],
            ),
            ("--distance 1km --nic /nowhere/x.toml", ["/nowhere/x.toml", "No such file"]),
            ("--distanc 3km", ["--distanc", "--distance"]),
            ("--answer 0", ["'0'", "--answer"]),
        ] {
            assert_refused(&plan(arguments), 2, &parts);
        }
    }

    #[test]
    fn an_unknown_key_of_a_nic_is_named_with_the_nearest_valid_one() {
        let runtime = RuntimeDir::new();
        let file = runtime.path().join("nic.toml");
        fs::write(&file, "name = 'x'\noutstanding_wqe = 128\n").unwrap();
        let done = plan(&format!("--distance 1km --nic {}", file.display()));
        assert_refused(&done, 2, &["nic.toml", "'outstanding_wqe'", "'outstanding_wqes'"]);
    }

    #[test]
    fn a_plot_that_cannot_be_written_says_so() {
        assert_refused(&plan("--distance 1km --svg /nowhere/x.svg"), 1, &["/nowhere/x.svg"]);
    }
}

mod probe {
    use super::*;
    use std::thread::sleep;
    use std::time::Instant;

    /// A UDP port that is free if the same TCP port is.
    fn port() -> u16 {
        free_tcp_port()
    }

    #[test]
    fn a_path_is_measured_and_planned_for() {
        let runtime = RuntimeDir::new();
        let port = port();
        let _answering = Program::start(&mut runtime.longhaul(&format!("plan --answer {port}")));
        let arguments = format!("--probe 127.0.0.1:{port} --probes 20 --rate 10G --json");
        let deadline = Instant::now() + LIMIT;
        let measured = loop {
            let done = plan(&arguments);
            let measured = serde_json::from_str::<Value>(&done.stdout).ok();
            // It may not listen yet, or answer later than a probe waits.
            let is_whole = |measured: &Value| {
                let probe = &measured["probe"];
                probe["answers"] == 20 && probe["path_mtu"] == 9216
            };
            if let Some(measured) = measured.filter(is_whole) {
                break measured;
            }
            assert!(Instant::now() < deadline, "{done}");
            sleep(Duration::from_millis(50));
        };
        let probe = &measured["probe"];
        assert_eq!((&probe["probes"], &probe["answers"]), (&20.into(), &20.into()), "{probe}");
        assert_eq!(
            (&probe["path_mtu"], &probe["roce_mtu"]),
            (&9216.into(), &4096.into()),
            "{probe}"
        );
        let rtt_us = probe["rtt_median_us"].as_f64().unwrap();
        assert!(rtt_us > 0.0);
        assert!((measured["rtt_ns"].as_f64().unwrap() - rtt_us * 1e3).abs() < 1.0, "{measured}");
        assert!(measured["path"]["loss"] == 0.0 && measured["path"]["mtu"] == 4096);
    }

    #[test]
    fn a_second_answering_side_on_a_port_is_refused() {
        let runtime = RuntimeDir::new();
        let socket = std::net::UdpSocket::bind("[::]:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let done =
            Program::start(&mut runtime.longhaul(&format!("plan --answer {port}"))).finish(LIMIT);
        assert_refused(&done, 1, &["is taken", "--answer PORT"]);
    }

    #[test]
    fn silence_refusal_and_unknown_names_are_told_apart() {
        // No other program gets it by itself once it is free again.
        let port = port();
        let silent = std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let done = plan(&format!("--probe 127.0.0.1:{port}"));
        assert_refused(&done, 1, &["no answer from", "--answer", "firewalls"]);
        drop(silent);
        let done = plan(&format!("--probe 127.0.0.1:{port}"));
        assert_refused(&done, 1, &["nobody answers", &format!("--answer {port}")]);
        assert_refused(
            &plan("--probe no-such-host.invalid"),
            1,
            &["'no-such-host.invalid' does not resolve"],
        );
        assert_refused(&plan("--probe host:port"), 1, &["'port' is not a port"]);
    }
}

/// The planner and the simulator share only the profiles.
#[test]
fn the_simulator_has_the_same_nic_profiles() {
    let runtime = RuntimeDir::new();
    let labs = concat!(env!("CARGO_MANIFEST_DIR"), "/../labs/nics");
    let files = fs::read_dir(labs).expect("profiles").map(|file| file.expect("a profile").path());
    let names: Vec<String> =
        files.map(|file| file.file_stem().expect("a name").to_string_lossy().into()).collect();
    assert!(names.len() > 3, "{names:?}");
    let scenario = runtime.path().join("path.toml");
    let flow = "size = '4K'\nduration = '1ms'";
    fs::write(&scenario, format!("[path]\ndistance = '1km'\n[[flow]]\n{flow}\n")).expect("a file");
    for name in names {
        let planned = json(&format!("--distance 1km --nic {name}"));
        assert_eq!(planned["nic"]["name"], *name, "{planned}");
        let sim = format!("sim {} --set path.nic={name}", scenario.display());
        Program::start(&mut runtime.longhaul(&sim)).succeed(LIMIT);
    }
    let planned = plan("--distance 1km --nic nosuch");
    let sim = format!("sim {} --set path.nic=nosuch", scenario.display());
    let simulated = Program::start(&mut runtime.longhaul(&sim)).finish(LIMIT);
    let list = |done: &Finished| {
        let (_, list) = done.stderr.split_once("connectx6, ").unwrap_or_else(|| panic!("{done}"));
        list.split([';', '\n']).next().map(|list| list.replace(", or give a TOML file", ""))
    };
    assert_eq!(list(&planned), list(&simulated));
}
