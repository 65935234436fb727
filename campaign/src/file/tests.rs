//! Faults of a campaign file, and the commands that it declares.

use super::*;
use crate::executor::{Executor as _, InLab, OnMachine, Side};

const SHORTEST: &str = "name = \"x\"\n[[program]]\nname = \"a\"\nclient = \"ib_write_bw\"\n";

fn campaign(text: &str) -> Campaign {
    Campaign::parse("x.toml", text, false).unwrap_or_else(|error| panic!("{error}\nof:\n{text}"))
}

/// The refusal of `text`, by its parser or by its points in a lab.
fn refusal(text: &str) -> String {
    let lab = InLab::new("x".parse().unwrap(), |_, _| Err("none".into()));
    let parsed = Campaign::parse("x.toml", text, true);
    match parsed.and_then(|campaign| campaign.points(&lab)) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let found = campaign(SHORTEST);
    assert_eq!((found.repeats, found.warm_up, found.retries), (5, 0, 1));
    assert_eq!(found.site, Site::Machine);
    assert_eq!((found.limit, found.cool_down), (Duration::from_secs(60), Duration::ZERO));
    assert_eq!((found.order, found.sample), (Order::Random, None));
}

#[test]
fn faults_have_a_line_and_a_cure() {
    let program = |keys: &str| format!("name = \"x\"\n[[program]]\nname = \"a\"\n{keys}\n");
    for (text, line, part) in [
        ("name = ".to_owned(), 1, "string values must be quoted"),
        (SHORTEST.replace("\"x\"", "\"x y\""), 1, "use letters, digits"),
        (format!("repeat = 3\n{SHORTEST}"), 1, "unknown field `repeat`, expected one of"),
        (format!("repeats = 0\n{SHORTEST}"), 1, "'repeats' must be from 1"),
        (format!("limit_s = 0\n{SHORTEST}"), 1, "'limit_s' must be from 0.1"),
        (format!("sample_ms = 0.5\n{SHORTEST}"), 1, "'sample_ms' must be from 1"),
        (format!("order = \"any\"\n{SHORTEST}"), 1, "expected `random` or `listed`"),
        ("name = \"x\"\n".to_owned(), 2, "add a [[program]]"),
        (format!("{SHORTEST}{}", &SHORTEST[11..]), 6, "give each its own name"),
        (program("client = \"\""), 4, "the command is empty"),
        (program("client = \"ib_x 'y\""), 4, "a quote of the command is not closed"),
        (program("client = \"ib_x {y\""), 4, "write '{{' for a brace"),
        (program("client = \"ib_x {y}\""), 4, "no axis is called 'y': add it to [axes]"),
        (program("client = \"dd\""), 4, "the output of 'dd' is unknown: give a 'pattern'"),
        (program("client = \"dd\"\nparser = \"dd\""), 5, "no parser is called \"dd\""),
        (program("client = \"dd\"\npattern = \"(\""), 5, "not a regular expression"),
        (program("client = \"dd\"\npattern = \"a\""), 5, "no named group: write"),
        (program("client = \"ib_x\"\nready = \"y\""), 5, "'ready' is for commands with"),
        (program("client = \"ib_x\"\nunits = { a = \"us\" }"), 3, "add a 'pattern', or remove"),
        (program("client = \"ib_x\"\ncolour = 1"), 5, "unknown field `colour`"),
        (format!("{SHORTEST}[axes]\nqps = [1]\n"), 6, "write {qps} in a command"),
        (format!("{SHORTEST}[axes]\nqps = []\n"), 6, "list at least one"),
        (format!("{SHORTEST}[axes]\nsize_bytes = [\"4X\"]\n"), 6, "cannot be \"4X\": not a size"),
        (format!("{SHORTEST}[axes]\nqps = [[1]]\n"), 6, "use a text, a number"),
        (format!("{SHORTEST}[axes]\nloss = [0, 2]\n"), 6, "--loss"),
        (format!("{SHORTEST}[lab]\nname = \"y\"\n"), 6, "a lab has no setting 'name'"),
        (format!("{SHORTEST}[lab]\ndistance = \"5\"\n"), 6, "--distance"),
        (format!("{SHORTEST}[ssh]\nclients = [\"a\"]\nservers = []\n"), 5, "names no host: write"),
        (format!("{SHORTEST}[ssh]\nhosts = []\n"), 6, "unknown field `hosts`"),
        (format!("{SHORTEST}[lab]\n[ssh]\nclients = []\nservers = []\n"), 6, "remove one"),
        (
            format!("{SHORTEST}[lab]\n[axes]\nclients = [2]\nservers = [3]\n"),
            7,
            "use equal numbers, or 1 of one",
        ),
        (format!("{SHORTEST}[reduced]\naxes = {{ qps = [1] }}\n"), 6, "no axis is called 'qps'"),
    ] {
        let refused = refusal(&text);
        let place = format!("x.toml:{line}: ");
        assert!(refused.starts_with(&place) && refused.contains(part), "{refused}\nof:\n{text}");
        assert!(!refused.contains('\n'), "{refused}");
    }
}

#[test]
fn known_programs_get_the_words_by_which_they_meet() {
    let both = |line: &str| {
        let found = campaign(&SHORTEST.replace("ib_write_bw", line));
        let commands = &found.programs[0].commands;
        let server = commands.server.as_ref().map_or("", |server| server.text());
        format!("{} | {server}", commands.client.text())
    };
    assert_eq!(
        both("ib_send_bw -s 8"),
        "ib_send_bw -s 8 -p {port} {tcp} | ib_send_bw -s 8 -p {port}"
    );
    assert_eq!(
        both("ib_read_lat -R"),
        "ib_read_lat -R -p {port} {address} | ib_read_lat -R -p {port}"
    );
    assert_eq!(both("qperf rc_bw"), "qperf rc_bw -lp {port} {tcp} | qperf -lp {port}");
    let words = "longhaul storage host --rw read";
    assert_eq!(both(words), format!("{words} {{address}} --json | longhaul storage target"));
    let tcp = both("iperf3 -P 4");
    assert!(
        tcp.starts_with("iperf3 -P 4 --client {tcp}") && tcp.ends_with("--port {port}"),
        "{tcp}"
    );
    assert!(both("longhaul ingest send --windows 9").contains("receive --listen 0.0.0.0:{port}"));
}

#[test]
fn a_command_with_a_parser_is_left_as_it_is() {
    let text = "name = \"x\"\n[[program]]\nname = \"a\"\nclient = \"ib_write_bw {tcp}\"\nserver = \
                \"sh -c 'nc -l {port}'\"\nparser = \"perftest\"\nfrom = \"server\"\n";
    let commands = campaign(text).programs.remove(0).commands;
    assert_eq!(commands.client.text(), "ib_write_bw {tcp}");
    assert_eq!((commands.from, commands.is_tcp, commands.server_ends), (Side::Server, true, false));
    assert_eq!(commands.start, crate::program::Start::Listens);
}

#[test]
fn a_reduced_campaign_has_other_values() {
    let text = "name = \"x\"\nrepeats = 9\n[axes]\nqps = [1, 2]\n[[program]]\nname = \
                \"a\"\nclient = \"ib_write_bw -q {qps} -s {size_bytes}\"\naxes = { size_bytes = \
                [1, 2, 3] }\n[reduced]\nrepeats = 2\naxes = { qps = [4], size_bytes = [\"1K\"] }\n";
    let machine = OnMachine::new(|_| Err("none".into()));
    assert!(!machine.takes("distance"));
    let whole = campaign(text);
    assert_eq!((whole.points(&machine).unwrap().len(), whole.repeats), (6, 9));
    let reduced = Campaign::parse("x.toml", text, true).unwrap();
    let points = reduced.points(&machine).unwrap();
    let place = longhaul_bench::Point::new().with("program", "a").with("qps", 4);
    assert_eq!((points.len(), reduced.repeats), (1, 2));
    assert_eq!(points[0].place, place.with("size_bytes", 1024));
    assert_eq!(reduced.digest(), whole.digest());
}

#[test]
fn a_part_may_run_in_labs_and_the_whole_on_hosts_that_its_user_names() {
    let text = "name = \"x\"\n[labels]\ndistance_km = 380\n[axes]\nqps = [1]\n[[program]]\nname = \
                \"a\"\nclient = \"ib_write_bw -q {qps}\"\n[reduced]\nlab = { distance = \
                [\"1km\", \"2km\"], rate = \"1G\" }\n";
    let lab = InLab::new("x".parse().unwrap(), |_, _| Err("none".into()));
    let machine = OnMachine::new(|_| Err("none".into()));
    let mut whole = campaign(text);
    assert_eq!(whole.site, Site::Unnamed);
    let place = longhaul_bench::Point::new().with("program", "a").with("distance_km", 380);
    assert_eq!(whole.points(&machine).unwrap()[0].place, place.clone().with("qps", 1));
    whole.label("distance_km", "100").unwrap();
    whole.set("qps", "4, 8").unwrap();
    let points = whole.points(&machine).unwrap();
    assert_eq!(points[1].place, place.with("distance_km", 100).with("qps", 8));
    assert_eq!(whole.set("x", "1").unwrap_err().to_string(), "no axis is called 'x'");
    let reduced = Campaign::parse("x.toml", text, true).unwrap();
    assert_eq!(reduced.site, Site::Lab);
    let points = reduced.points(&lab).unwrap();
    let km = |at: usize| points[at].place.get("distance_km").cloned();
    assert_eq!((points.len(), km(0), km(1)), (2, Some(1.0.into()), Some(2.0.into())));
}
