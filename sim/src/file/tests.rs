//! Meaning of files, and refusals.

use super::*;
use crate::host::{Op, Storage};
use crate::profile::NicProfile;
use crate::scenario::{StationKind, Test, Until};
use longhaul_link::Bursts;
use longhaul_units::{BitRate, Duration, Instant};

mod flow_control;
mod ingest;
mod migration;
mod sealing;

const SHORTEST: &str = "[path]\ndistance = \"100km\"\n[[flow]]\n";

/// The common part of test files.
const TABLES_TEXT: &str = r#"
[[host]]
name = "a"
[[host]]
name = "b"
[[accelerator]]
name = "near"
[[link]]
between = ["a", "near.lan"]
[[link]]
name = "wan"
between = ["near.wan", "b"]
distance = "1000km"
rate = "100G"
[[flow]]
op = "read"
"#;

fn no_files(name: &str) -> Result<String, String> {
    Err(format!("no file {name}"))
}

fn load(text: &str) -> Result<Loaded, FileError> {
    ScenarioFile::parse("x.toml", text)?.load(&mut no_files)
}

fn refusal(text: &str) -> String {
    match load(text) {
        Ok(_) => panic!("taken:\n{text}"),
        Err(error) => error.to_string(),
    }
}

/// `x.toml:LINE: …` with all of `parts`.
#[track_caller]
fn assert_refused(text: &str, line: usize, parts: &[&str]) {
    let refusal = refusal(text);
    assert!(refusal.starts_with(&format!("x.toml:{line}: ")), "{refusal}\nof:\n{text}");
    for part in parts {
        assert!(refusal.contains(part), "{part:?} is missing: {refusal}\nof:\n{text}");
    }
}

fn host(loaded: &Loaded, at: usize) -> &NicProfile {
    match &loaded.scenario.stations[at].kind {
        StationKind::Host(profile) => profile,
        other => panic!("{other:?}"),
    }
}

fn accelerator(loaded: &Loaded, name: &str) -> longhaul_accel::Config {
    let station = loaded.scenario.stations.iter().find(|station| station.name == name).unwrap();
    match &station.kind {
        StationKind::Box(config) => config.near.clone(),
        other => panic!("{other:?}"),
    }
}

mod the_usual_case {
    use super::*;

    #[test]
    fn is_two_hosts_and_a_fibre() {
        let loaded = load(SHORTEST).unwrap();
        let names: Vec<&str> =
            loaded.scenario.stations.iter().map(|station| &*station.name).collect();
        assert_eq!((names, &*loaded.links[0].name), (vec!["a", "b"], "wan"));
        assert_eq!(host(&loaded, 0), &NicProfile::named("connectx6").unwrap());
        let cable = &loaded.scenario.cables[0];
        assert_eq!((cable.ends, cable.wire.delay), ([(0, 0), (1, 0)], Duration::from_us(500)));
        assert_eq!(cable.wire.rate, BitRate::from_gbps(100));
        let flow = &loaded.scenario.flows[0];
        assert_eq!(
            (flow.from, flow.to, flow.op, flow.message_bytes, flow.qps),
            (0, 1, Op::Write, 65_536, 1)
        );
        assert_eq!(flow.test, Test::default());
    }

    #[test]
    fn has_accelerators_where_they_are_asked_for() {
        for (which, expected) in [
            ("none", vec![("wan", "a", "b")]),
            ("near", vec![("lan-a", "a", "near"), ("wan", "near", "b")]),
            ("far", vec![("lan-b", "b", "far"), ("wan", "a", "far")]),
            ("both", vec![("lan-a", "a", "near"), ("lan-b", "b", "far"), ("wan", "near", "far")]),
        ] {
            let text = format!("[path]\naccelerators = \"{which}\"\n[[flow]]");
            let loaded = load(&text).unwrap();
            let name = |at: usize| &*loaded.scenario.stations[at].name;
            let cables = loaded.scenario.cables.iter().zip(&loaded.links);
            let found: Vec<_> = cables
                .map(|(cable, link)| (&*link.name, name(cable.ends[0].0), name(cable.ends[1].0)))
                .collect();
            assert_eq!(found, expected, "{which}");
            crate::Simulation::new(loaded.scenario, |_, _| None).map(drop).unwrap();
        }
    }

    #[test]
    fn delays_add_up() {
        let text = "[path]\ndelay = \"3.81ms\"\nextra_delay = \"20us\"\n[flow]";
        assert_eq!(load(text).unwrap().scenario.cables[0].wire.delay, Duration::from_us(3830));
    }

    #[test]
    fn rules_and_changes_are_lists_whose_side_a_is_the_end_named_first() {
        let keys = "rule = 'read-response from b: lose 1%; cm: lose once;'\n\
                    at = '10s cut 50ms; 30s rate 1G'";
        for (direction, sides) in [("both", [Some(1), None]), ("backward", [Some(0), None])] {
            let text =
                format!("[path]\nloss = 1e-3\nloss_direction = '{direction}'\n{keys}\n[flow]");
            let wire = load(&text).unwrap().scenario.cables[0].wire.clone();
            assert_eq!(
                wire.rules.iter().map(|rule| rule.selection.from).collect::<Vec<_>>(),
                sides
            );
            assert_eq!(wire.changes.len(), 2);
        }
        assert_refused(
            "[path]\nrule = 'cm: lose; writ: lose'\n[flow]",
            2,
            &["'writ: lose', character 1"],
        );
        assert_refused("[path]\nat = '10 cut'\n[flow]", 2, &["not a time"]);
    }

    /// A rule drops one packet of a WRITE, which still completes.
    #[test]
    fn a_rule_and_a_cut_strike_in_a_simulation() {
        let run = |keys: &str| {
            let text = format!(
                "[path]\ndistance = '10km'\nrate = '10G'\n{keys}\n[flow]\nop = 'write'\n\
                 size = '1M'\niterations = 20"
            );
            let simulation =
                crate::Simulation::new(load(&text).unwrap().scenario, |_, _| None).unwrap();
            let outcome = simulation.run(1, |_| true);
            assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
            outcome.wires.iter().map(|wire| wire.lost_frames).collect::<Vec<u64>>()
        };
        assert_eq!(run(""), [0, 0]);
        assert_eq!(run("rule = 'write from a: lose number 700'"), [1, 0]);
        assert_eq!(run("rule = 'write from b: lose number 700'"), [0, 0]);
        assert_eq!(run("rule = 'ack from b: lose first 2; nak: lose'"), [0, 2]);
        assert!(run("at = '5ms cut 100us'")[0] > 10);
    }

    #[test]
    fn losses_come_in_bursts_and_cuts_at_their_time() {
        let keys = "loss = 1e-3\nloss_burst = 8\nloss_in_burst = 0.5\ncut_at = '3ms'\n\
                    cut_for = '1ms'\ncut_every = '5ms'";
        let wire =
            load(&format!("[path]\n{keys}\n[flow]")).unwrap().scenario.cables[0].wire.clone();
        assert_eq!(wire.bursts, Some(Bursts { frames: 8.0, loss: 0.5 }));
        let cut = wire.cut.unwrap();
        assert_eq!((cut.at, cut.lasts), (Instant::from_ns(3_000_000), Duration::from_ms(1)));
        assert_eq!(cut.every, Some(Duration::from_ms(5)));
        for (keys, missing) in [
            ("loss_burst = 8", "loss"),
            ("loss = 0.1\nloss_in_burst = 0.5", "loss_burst"),
            ("cut_for = '1ms'", "cut_at"),
        ] {
            let why = load(&format!("[path]\n{keys}\n[flow]")).unwrap_err().to_string();
            assert!(why.contains(&format!("without '{missing}'")), "{why}");
        }
    }

    #[test]
    fn losses_have_their_direction() {
        for (direction, ends, one_way) in
            [("both", [0, 1], false), ("forward", [0, 1], true), ("backward", [1, 0], true)]
        {
            let text = format!("[path]\nloss = 1e-5\nloss_direction = \"{direction}\"\n[flow]");
            let cable = load(&text).unwrap().scenario.cables[0].clone();
            assert_eq!(cable.ends.map(|(station, _)| station), ends, "{direction}");
            assert_eq!(
                (cable.wire.loss, cable.loss_toward_second_only),
                (1e-5, one_way),
                "{direction}"
            );
        }
    }
}

mod any_network {
    use super::*;

    #[test]
    fn joins_stations_by_name() {
        let loaded = load(TABLES_TEXT).unwrap();
        let cables: Vec<_> = loaded.scenario.cables.iter().map(|cable| cable.ends).collect();
        assert_eq!(cables, [[(0, 0), (2, 0)], [(2, 1), (1, 0)]]);
        assert_eq!(
            loaded.links.iter().map(|link| &*link.name).collect::<Vec<_>>(),
            ["a-near", "wan"]
        );
        assert_eq!(loaded.scenario.cables[0].wire.rate, BitRate::from_gbps(100), "the NIC's");
    }

    #[test]
    fn a_switch_has_as_many_ports_as_links_and_the_fastest_ones_rate() {
        let text = r#"
            [[host]]
            name = "a"
            [[host]]
            name = "b"
            [[host]]
            name = "c"
            nic = { rate_bps = "400G" }
            [[switch]]
            name = "s"
            queue = "1M"
            ecn = "on"
            [[link]]
            between = ["a", "s"]
            [[link]]
            between = ["s", "b"]
            rate = "10G"
            [[link]]
            between = ["c", "s"]
            [[flow]]
            from = "a"
            to = "c"
            count = 3
        "#;
        let loaded = load(text).unwrap();
        let StationKind::Switch(config) = &loaded.scenario.stations[3].kind else { panic!() };
        assert_eq!((config.ports, Some(config.rate)), (3, BitRate::from_gbps(400)));
        let gbps = |gbps| BitRate::from_gbps(gbps).unwrap();
        assert_eq!(config.port_rates, [100, 10, 400].map(gbps), "each port is as fast as its link");
        assert_eq!(config.ecn, Some(longhaul_cc::RedConfig::for_queue(1 << 20)));
        let names: Vec<&str> = loaded.scenario.flows.iter().map(|flow| &*flow.name).collect();
        assert_eq!(names, ["flow1-1", "flow1-2", "flow1-3"]);
        crate::Simulation::new(loaded.scenario, |_, _| None).map(drop).unwrap();
    }

    #[test]
    fn an_accelerators_window_and_store_follow_from_rate_distance_and_flows() {
        let config = accelerator(&load(TABLES_TEXT).unwrap(), "near");
        // 100 Gbit/s over 10 ms are 125 MB.
        assert_eq!(config.ack_window_bytes, 500_000_000);
        assert_eq!(
            (config.wan_pacing.rate(), config.lan_pacing.rate()),
            (BitRate::from_gbps(100), BitRate::from_gbps(100))
        );
        assert!(config.flow_bytes_max / 4 * 3 >= config.ack_window_bytes);
        let posts_more = format!("{TABLES_TEXT}size = \"8M\"\ntx_depth = 1024");
        let store = accelerator(&load(&posts_more).unwrap(), "near").flow_bytes_max;
        assert!(store >= config.ack_window_bytes + (8 << 30), "{store}");
        let given = TABLES_TEXT
            .replace("name = \"near\"", "name = \"near\"\nwindow = \"7M\"\nmemory = \"64M\"");
        let config = accelerator(&load(&given).unwrap(), "near");
        assert_eq!((config.ack_window_bytes, config.total_bytes_max), (7 << 20, 64 << 20));
        assert!(config.flow_bytes_max <= 64 << 20);
    }

    #[test]
    fn a_nic_is_a_profile_a_file_or_what_differs_from_either() {
        let with = |nic: &str| {
            let text = format!("[path]\nnic = {nic}\n[flow]");
            let mut files = |name: &str| match name {
                "mine.toml" => {
                    Ok(include_str!("../../../labs/nics/rxe.toml").replace("\"rxe\"", "\"mine\""))
                }
                other => Err(format!("no file {other}")),
            };
            ScenarioFile::parse("x.toml", &text)
                .unwrap()
                .load(&mut files)
                .map(|loaded| host(&loaded, 0).clone())
        };
        assert_eq!(with("\"ideal\"").unwrap(), NicProfile::named("ideal").unwrap());
        assert_eq!(with("\"mine.toml\"").unwrap().name, "mine");
        let changed =
            with("{ profile = \"rxe\", outstanding_reads = 99, rate_bps = \"25G\" }").unwrap();
        let rxe = NicProfile::named("rxe").unwrap();
        assert_eq!(changed, NicProfile { outstanding_reads: 99, rate_bps: 25_000_000_000, ..rxe });
        assert_eq!(
            with("{ post_ns = 7 }").unwrap().outstanding_wqes,
            128,
            "connectx6 unless told otherwise"
        );
        let error = with("\"your.toml\"").unwrap_err().to_string();
        assert_eq!(error, "x.toml:2: the NIC profile your.toml: no file your.toml");
        assert!(
            with("\"conectx6\"").unwrap_err().to_string().contains("did you mean 'connectx6'?")
        );
    }

    #[test]
    fn every_profile_that_comes_along_is_read() {
        for name in NicProfile::names() {
            assert_eq!(NicProfile::named(name).unwrap().name, name);
        }
    }
}

mod flows {
    use super::*;

    #[test]
    fn are_what_perftest_would_do() {
        let text = format!(
            "{SHORTEST}name = \"f\"\nop = \"send\"\nsize = \"4M\"\nqps = 4\nmtu = 1024\n\
             tx_depth = 32\nrx_depth = 64\n\
             post_list = 8\ncq_mod = 16\nduration = \"5ms\"\nstart = \"1ms\"\nfrom = \"b\"\n\
             to = \"a\""
        );
        let flow = load(&text).unwrap().scenario.flows[0].clone();
        assert_eq!((flow.from, flow.to, &*flow.name, flow.op), (1, 0, "f", Op::Send));
        assert_eq!((flow.message_bytes, flow.qps, flow.mtu.bytes()), (4 << 20, 4, 1024));
        assert_eq!(flow.starts_at, Duration::from_ms(1));
        let until = Until::Elapsed(Duration::from_ms(5));
        let test =
            Test::Bandwidth { tx_depth: 32, rx_depth: 64, post_list: 8, cq_mod: Some(16), until };
        assert_eq!(flow.test, test);
        let latency = format!("{SHORTEST}test = \"latency\"\nop = \"atomic\"\niterations = 7");
        let flow = load(&latency).unwrap().scenario.flows[0].clone();
        assert_eq!((flow.message_bytes, flow.test), (8, Test::Latency { iterations: 7 }));
        let storage = format!(
            "{SHORTEST}test = \"storage\"\nop = \"read\"\ntx_depth = 64\nin_capsule = 8192\n\
             target_cores = 4\ncommand_time = \"2us\"\ndrive_rate = \"24G\"\n\
             drive_latency = \"80us\""
        );
        let target = Storage {
            in_capsule: 8192,
            cores: 4,
            command: Duration::from_us(2),
            drive_rate: BitRate::from_gbps(24),
            drive_latency: Duration::from_us(80),
        };
        let test = Test::Storage { depth: 64, until: Until::Iterations(1000), storage: target };
        assert_eq!(load(&storage).unwrap().scenario.flows[0].test, test);
    }

    #[test]
    fn that_make_no_sense_are_refused_with_a_cure() {
        for (keys, line, parts) in [
            ("from = \"b\"", 4, &["from 'b' to itself", "another host"][..]),
            ("to = \"c\"", 4, &["\"c\"", "none of the hosts a, b"]),
            ("op = \"wirte\"", 4, &["did you mean 'write'?"]),
            ("size = 0", 4, &["0 is out of range", "1 to 2 GiB"]),
            ("size = \"3G\"", 4, &["3G", "2 GiB"]),
            ("size = \"half\"", 4, &["half", "64K"]),
            ("op = \"atomic\"\nsize = 16", 5, &["8 bytes, not 16", "leave size out"]),
            ("qps = 0", 4, &["0 is out of range", "from 1"]),
            ("qps = -1", 4, &["-1 is not a whole number"]),
            ("mtu = 1500", 4, &["path MTU of 1500", "1024, 2048"]),
            ("test = \"latency\"\nqps = 2", 5, &["one QP"]),
            ("test = \"latency\"\ntx_depth = 2", 5, &["take 'tx_depth' out"]),
            ("connect = \"rdma\"", 4, &["out-of-band, cm"]),
            ("listen = false", 4, &["add connect = \"cm\"", "take 'listen' out"]),
            ("iterations = 0", 4, &["0 is out of range"]),
            ("iterations = 5\nduration = \"1ms\"", 5, &["both"]),
            ("duration = \"0\"", 4, &["measures nothing"]),
            ("duration = \"2h\"", 4, &["2h", "ns, us, ms or s"]),
            ("duration = \"3601s\"", 4, &["longer than an hour"]),
            ("rx_depth = 5", 4, &["only SEND"]),
            ("tx_depth = 4\npost_list = 5", 5, &["post_list = 5", "tx_depth = 4"]),
            ("cq_mod = 129", 4, &["cq_mod = 129", "tx_depth = 128"]),
            ("tx_dpeth = 4", 4, &["'tx_dpeth' in [[flow]]", "did you mean 'tx_depth'?"]),
            ("zebra = 4", 4, &["'zebra'", "none of name, from, to"]),
            ("name = \"a b\"", 4, &["no name"]),
            ("[[flow]]\nname = \"flow1\"", 5, &["two flows are called 'flow1'"]),
            ("drive_rate = \"8G\"", 4, &["add test = \"storage\""]),
            ("test = \"storage\"\nop = \"send\"", 3, &["op = \"read\" or \"write\""]),
            ("test = \"storage\"\ntransport = \"uc\"", 3, &["take 'transport' out"]),
            ("test = \"storage\"\nevents = \"all\"", 3, &["take 'events' out"]),
            ("test = \"storage\"\ncq_mod = 2", 5, &["take 'cq_mod' out"]),
            ("qps = 1000000\ncount = 2", 3, &["2000000 QPs", "1048576"]),
        ] {
            assert_refused(&format!("{SHORTEST}{keys}"), line, parts);
        }
        assert_refused("[path]\n", 1, &["no [[flow]]"]);
    }
}

mod networks_that_cannot_be {
    use super::*;

    #[test]
    fn values_that_make_no_sense_are_refused_with_what_would() {
        for (keys, parts) in [
            ("rate = 0", &["rate in [path]", "out of range", "100G"][..]),
            ("rate = \"0\"", &["out of range"]),
            ("rate = \"fast\"", &["\"fast\"", "100G"]),
            ("rate = \"400G\"", &["more than the 100G of host 'a'", "rate_bps"]),
            ("distance = \"-5km\"", &["-5km", "380km"]),
            ("distance = \"90000km\"", &["longer than 80000 km"]),
            ("distance = 1000", &["1000 is not a length", "km"]),
            ("delay = \"2h\"", &["2h"]),
            ("loss = 2", &["out of range", "0 to 1"]),
            ("loss = nan", &["nan is not a probability"]),
            ("ecn = \"4M:1M\"", &["Kmin above its Kmax"]),
            ("ecn = \"1M\"", &["KMIN:KMAX"]),
            ("queue = \"0\"", &["queue"]),
            ("accelerators = \"two\"", &["none, near, far, both"]),
            ("lan_delay = \"1us\"", &["without an accelerator"]),
            ("loss_direction = \"both\"", &["without 'loss'"]),
            ("distnace = \"1km\"", &["'distnace' in [path]", "did you mean 'distance'?"]),
            ("nic = 5", &["nic is 5"]),
            ("nic = { outstanding_wqe = 1 }", &["did you mean 'outstanding_wqes'?"]),
            ("nic = { outstanding_reads = 0 }", &["outstanding_reads", "from 1 to 128"]),
        ] {
            assert_refused(&format!("[path]\n{keys}\n[[flow]]"), 2, parts);
        }
        assert_refused(
            "[path]\ndistance = \"1km\"\ndelay = \"1ms\"\n[flow]",
            3,
            &["take one of them out"],
        );
        assert_refused(
            "[path]\naccelerators = \"both\"\n[path.accelerator]\nack_every = 0\n[flow]",
            4,
            &["1 to 128"],
        );
        assert_refused(
            "[path]\naccelerators = \"both\"\n[path.accelerator]\nwindow = 1\n[flow]",
            1,
            &["ack_window_bytes"],
        );
        assert_refused("[path\n", 1, &[]);
        assert_refused("sed = 1\n[path]\n[flow]", 1, &["'sed'", "did you mean 'seed'?"]);
        assert_refused("seed = 1\n[[hosts]]\n", 2, &["did you mean 'host'?"]);
        assert_refused("[[path]]\n[[path]]\n[flow]", 1, &["one [path] at most"]);
    }

    #[test]
    fn topologies_are_refused_at_the_table_that_is_to_blame() {
        let change = |from: &str, to: &str| {
            assert!(TABLES_TEXT.contains(from), "{from}");
            TABLES_TEXT.replacen(from, to, 1)
        };
        for (text, line, parts) in [
            (change("\"b\"]", "\"c\"]"), 12, &["'c'", "none of the stations a, b, near"][..]),
            (change("near.lan", "near"), 9, &["'near.lan' and 'near.wan'"]),
            (change("near.lan", "near.wam"), 9, &["'near.lan' and 'near.wan'"]),
            (change("near.lan", "b.lan"), 9, &["'b' is no accelerator"]),
            (change("near.lan", "near.wan"), 6, &["no link ends at 'near.lan'"]),
            (change("near.lan", "b"), 10, &["2 links end at 'b'", "[[switch]]"]),
            (change("\"near.lan\"]", "\"a\"]"), 9, &["from 'a' to itself"]),
            (change("[\"a\", \"near.lan\"]", "[\"a\"]"), 9, &["two ends, not 1"]),
            (change("between = [\"a\", \"near.lan\"]", ""), 8, &["joins nothing"]),
            (change("name = \"wan\"", "name = \"a-near\""), 10, &["two links are called 'a-near'"]),
            (change("name = \"b\"", "name = \"a\""), 4, &["two stations are called 'a'"]),
            (change("name = \"near\"", "memory = \"1G\""), 6, &["has no 'name'"]),
            (change("[[flow]]", "[[flow]]\nfrom = \"near\""), 16, &["'near' is no host"]),
            (format!("[path]\n{TABLES_TEXT}"), 3, &["take [path] or [[host]] out"]),
            ("[[host]]\nname = \"a\"\n[flow]".into(), 1, &["two hosts at least"]),
        ] {
            assert_refused(&text, line, parts);
        }
    }

    #[test]
    fn loops_and_islands_are_refused() {
        let hosts: String =
            ["a", "b", "c", "d"].map(|name| format!("[[host]]\nname = \"{name}\"\n")).concat();
        let switches: String =
            ["s", "t"].map(|name| format!("[[switch]]\nname = \"{name}\"\n")).concat();
        let link =
            |one: &str, other: &str| format!("[[link]]\nbetween = [\"{one}\", \"{other}\"]\n");
        let islands = format!(
            "{hosts}{}{}[[flow]]\nfrom = \"a\"\nto = \"c\"",
            link("a", "b"),
            link("c", "d")
        );
        assert_refused(&islands, 14, &["no links lead from 'a' to 'c'"]);
        let [a, b, c, d] = ["a", "b"]
            .map(|host| link(host, "s"))
            .into_iter()
            .chain(["c", "d"].map(|host| link(host, "t")))
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let looped = format!(
            "{hosts}{switches}{a}{b}{c}{d}{}[[link]]\nname = \"again\"\nbetween = [\"t\", \"s\"]\n\
             [[flow]]",
            link("s", "t")
        );
        assert_refused(&looped, 23, &["'again' closes a loop"]);
        let lonely =
            format!("{hosts}[[switch]]\nname = \"s\"\n{}{}", link("a", "s"), link("b", "c"));
        assert_refused(&lonely, 7, &["no link ends at 'd'"]);
        let small = format!(
            "{hosts}[[switch]]\nname = \"s\"\nports = 3\n{}",
            ["a", "b", "c", "d"].map(|host| link(host, "s")).concat()
        );
        assert_refused(&small, 9, &["switch 's' has 4 links; it takes 2 to 3"]);
    }
}

mod the_example {
    use super::*;

    /// Its other half: what is there as comments.
    fn second() -> String {
        let (_, rest) = EXAMPLE.split_once("# ---\n").unwrap();
        let keys = rest
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(|line| !line.starts_with(' '));
        keys.map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn is_read_and_so_is_what_it_shows_as_comments() {
        let loaded = load(EXAMPLE).unwrap();
        assert_eq!(loaded.scenario.stations.len(), 4);
        let other = load(&second()).unwrap();
        assert_eq!(other.scenario.stations.len(), 6);
        for loaded in [loaded, other] {
            crate::Simulation::new(loaded.scenario, |_, _| None).map(drop).unwrap();
        }
    }

    #[test]
    fn each_commented_key_is_a_key_and_its_value_fits() {
        let (first, _) = EXAMPLE.split_once("# ---\n").unwrap();
        let mut table = "";
        let mut tried = 0;
        for line in first.lines() {
            let bare = line.trim_start_matches('#');
            if let Some(name) = bare.strip_prefix('[') {
                table = name.trim_matches(['[', ']']);
            } else if line.starts_with('#') && !bare.starts_with(' ') {
                let (key, value) = bare.split_once(" = ").unwrap();
                let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
                let mut file = ScenarioFile::parse("x.toml", EXAMPLE).unwrap();
                file.set(&path, value.trim_matches('"'))
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
                tried += 1;
            }
        }
        assert!(tried > 15, "{tried}");
    }

    #[test]
    fn names_every_key() {
        let tables = schema::TABLES
            .iter()
            .map(|(table, keys, _)| (*table, *keys))
            .chain([("", schema::TOP)]);
        for (table, key) in
            tables.flat_map(|(table, keys)| keys.iter().map(move |(key, _)| (table, *key)))
        {
            let is_there = EXAMPLE.lines().any(|line| {
                line.trim_start_matches('#').starts_with(&format!("{key} = "))
                    || line.contains(&format!("[{table}.{key}]"))
            });
            assert!(is_there, "{table}.{key}");
        }
    }
}

mod parameters {
    use super::*;
    use ParameterValue::*;

    fn file(text: &str) -> ScenarioFile {
        ScenarioFile::parse("x.toml", text).unwrap()
    }

    #[test]
    fn are_set_in_all_tables_or_in_one() {
        let two = format!("{SHORTEST}name = \"f\"\nsize = 1\n[[flow]]\n");
        let sizes = |path: &str| {
            let mut file = file(&two);
            file.set(path, "4K").unwrap();
            let loaded = file.load(&mut no_files).unwrap();
            loaded.scenario.flows.iter().map(|flow| flow.message_bytes).collect::<Vec<_>>()
        };
        assert_eq!(sizes("flow.size"), [4096, 4096]);
        assert_eq!(sizes("flow.f.size"), [4096, 65_536]);
        assert_eq!(sizes("flow.flow2.size"), [1, 4096]);
    }

    #[test]
    fn come_back_in_base_units() {
        let mut file = file(SHORTEST);
        for (path, value, key, expected) in [
            ("path.distance", "380km", "path.distance_m", Whole(380_000)),
            ("path.extra_delay", "1.5ns", "path.extra_delay_ns", Real(1.5)),
            ("path.rate", "10G", "path.rate_bps", Whole(10_000_000_000)),
            ("path.loss", "1e-5", "path.loss", Real(1e-5)),
            ("path.nic.rate_bps", "25G", "path.nic.rate_bps", Whole(25_000_000_000)),
            ("path.nic.post_ns", "5", "path.nic.post_ns", Whole(5)),
            ("path.accelerators", "both", "path.accelerators", Text("both".into())),
            ("path.accelerator.window", "1M", "path.accelerator.window_bytes", Whole(1 << 20)),
            ("flow.op", "read", "flow.op", Text("read".into())),
            ("seed", "7", "seed", Whole(7)),
        ] {
            let parameter = file.set(path, value).unwrap();
            assert_eq!((&*parameter.key, &parameter.value), (key, &expected), "{path}");
        }
        let loaded = file.load(&mut no_files).unwrap();
        assert_eq!(loaded.scenario.seed, 7);
        assert_eq!((host(&loaded, 0).post_ns, host(&loaded, 0).outstanding_wqes), (5, 128));
        assert_eq!(accelerator(&loaded, "near").ack_window_bytes, 1 << 20);
    }

    #[test]
    fn that_there_are_not_are_named_with_those_that_there_are() {
        for (path, value, parts) in [
            ("flow.sise", "1", &["did you mean 'size'?"][..]),
            ("flo.size", "1", &["did you mean 'flow'?"]),
            ("link.rate", "1G", &["x.toml has no link; it has path, flow"]),
            ("flow.other.size", "1", &["no flow is called so", "flow1"]),
            ("sede", "1", &["did you mean 'seed'?"]),
            ("flow.size", "0", &["flow.size=0: ", "out of range"]),
            ("flow.size.more", "0", &["no flow is called so"][..0]),
            ("path.nic", "5", &["no NIC profile"]),
            ("path.accelerator", "x", &["set one of its keys"]),
            ("path.rate.x", "x", &["no keys of its own"]),
        ] {
            let error = file(SHORTEST).set(path, value).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} is missing: {error}");
            }
        }
        // A value that is valid alone but not in context is refused on load, with its place.
        let mut file = file(SHORTEST);
        file.set("flow.cq_mod", "500").unwrap();
        let error = file.load(&mut no_files).unwrap_err().to_string();
        assert!(error.starts_with("flow.cq_mod=500: "), "{error}");
    }
}

mod axes {
    use super::*;

    fn axis(text: &str) -> Result<Axis, FileError> {
        Axis::parse(&ScenarioFile::parse("x.toml", SHORTEST).unwrap(), text)
    }

    #[test]
    fn list_values_and_ranges() {
        for (text, expected) in [
            ("flow.size=4K..32K,x2", &["4096", "8192", "16384", "32768"][..]),
            ("flow.size=4K..20K", &["4096", "8192", "16384", "20480"]),
            ("flow.size=1,4K..16K,+4K,1M", &["1", "4096", "8192", "12288", "16384", "1M"]),
            ("flow.size=1..8,x1.5", &["1", "2", "3", "5", "8"]),
            ("path.distance=10km,100km,1000km", &["10km", "100km", "1000km"]),
            ("path.distance=0..1km,+250m", &["0m", "250m", "500m", "750m", "1000m"]),
            ("path.delay=1ms..4ms", &["1000000000ps", "2000000000ps", "4000000000ps"]),
            ("path.loss=1e-7..1e-3,x10", &["1e-7", "1e-6", "1e-5", "1e-4", "1e-3"]),
            ("path.rate=100G..400G", &["100000000000", "200000000000", "400000000000"]),
            ("flow.op=write,read", &["write", "read"]),
            ("flow.qps=3..3", &["3"]),
            ("flow.qps=5,5", &["5"]),
        ] {
            let axis = axis(text).unwrap();
            assert_eq!(axis.values(), expected, "{text}");
            for value in axis.values() {
                let mut file = ScenarioFile::parse("x.toml", SHORTEST).unwrap();
                file.set(axis.path(), &value).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
        }
    }

    #[test]
    fn are_counted_without_being_listed() {
        assert_eq!(axis("flow.size=4K..8M,x2").unwrap().count(), 12);
        assert_eq!(axis("flow.iterations=1..1000000000,+1").unwrap().count(), 1_000_000_000);
        assert_eq!(axis("flow.qps=1..4,+1,8,16").unwrap().count(), 6);
    }

    #[test]
    fn that_lead_nowhere_are_refused() {
        for (text, part) in [
            ("flow.size", "KEY=VALUES"),
            ("flow.sice=1", "did you mean 'size'?"),
            ("flow.size=", "size"),
            ("flow.size=8M..4K", "runs backwards"),
            ("flow.size=4K..8M,x1", "does not lead upwards"),
            ("flow.size=4K..8M,+0", "out of range"),
            ("flow.size=4K..", "not bytes"),
            ("path.distance=0..100km", "needs its step"),
            ("path.distance=1..100km", "km"),
            ("flow.op=write..read", "no number"),
            ("flow.op=wirte", "did you mean 'write'?"),
        ] {
            let error = axis(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

mod modes {
    use super::*;
    use longhaul_accel::{Mode, Role};

    fn boxes(text: &str) -> Vec<(String, Role, Mode)> {
        let stations = load(text).unwrap_or_else(|why| panic!("{why}")).scenario.stations;
        let of = |station: crate::StationPlan| match station.kind {
            StationKind::Box(config) => {
                Some((station.name, config.near.role, config.near.policy.default_mode()))
            }
            _ => None,
        };
        stations.into_iter().filter_map(of).collect()
    }

    #[test]
    fn a_pair_has_both_halves_at_each_site_in_one_mode() {
        let text = "[path]\ndistance = \"100km\"\naccelerators = \"both\"\npaired = true\n\
                    [path.accelerator]\nmode = \"far\"\n[[flow]]\n";
        let expected = [
            ("near", Role::Near),
            ("near-responders", Role::Far),
            ("far", Role::Near),
            ("far-responders", Role::Far),
        ];
        assert_eq!(boxes(text), expected.map(|(name, role)| (name.to_owned(), role, Mode::Far)));
        let own = TABLES_TEXT
            .replace("name = \"near\"", "name = \"near\"\nmode = \"tail\"\nrole = \"far\"");
        assert_eq!(boxes(&own), [("near".to_owned(), Role::Far, Mode::Tail)]);
    }

    #[test]
    fn a_whole_box_has_both_halves_and_a_transport_as_large_as_its_paths() {
        let whole = |text: &str, name: &str| {
            let stations = load(text).unwrap_or_else(|why| panic!("{why}")).scenario.stations;
            let found = stations.into_iter().find(|station| station.name == name);
            match found.map(|station| station.kind) {
                Some(StationKind::Box(config)) => (config.near, config.whole.unwrap()),
                other => panic!("{other:?}"),
            }
        };
        let text = "[path]\ndelay = \"5ms\"\nrate = \"100G\"\naccelerators = \"both\"\n\
                    [path.accelerator]\ntransport = true\n[[flow]]\n";
        let (near, behind) = whole(text, "far");
        assert_eq!((near.role, behind.far.role), (Role::Near, Role::Far));
        // 125 MB are in flight per round trip, of which 50 ns are the LAN's.
        let transport = &behind.transport;
        assert_eq!(
            (transport.send_bytes_max, transport.receive_bytes_max),
            (250_001_250, 312_501_560)
        );
        assert_eq!(transport.paths[0].rate.most().map(|rate| rate.as_bps()), Some(100_000_000_000));
        let adaptive =
            text.replace("transport = true", "transport = true\nwan_rate = \"adaptive\"");
        let rate = longhaul_wan::Rate::Adaptive { most: None };
        assert_eq!(whole(&adaptive, "far").1.transport.paths[0].rate, rate);
        let two = TABLES_TEXT.replace(
            "[[accelerator]]\nname = \"near\"",
            "[[accelerator]]\nname = \"near\"\ntransport = true",
        );
        assert_eq!(whole(&two, "near").1.transport.paths.len(), 1);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let path = |keys: &str| format!("[path]\ndistance = \"100km\"\n{keys}\n[[flow]]\n");
        for (keys, line, part) in [
            ("paired = true", 3, "'paired' without an accelerator"),
            ("accelerators = \"near\"\npaired = true", 4, "a pair has two boxes"),
            ("accelerators = \"both\"\n[path.accelerator]\nmode = \"far\"", 5, "add paired = true"),
            (
                "accelerators = \"both\"\n[path.accelerator]\nrole = \"far\"",
                5,
                "paired = true puts in both",
            ),
            ("accelerators = \"both\"\n[path.accelerator]\nmode = \"fast\"", 5, "mode"),
            ("accelerators = \"near\"\n[path.accelerator]\ntransport = true", 5, "joins two boxes"),
        ] {
            assert_refused(&path(keys), line, &[part]);
        }
    }
}
