//! Campaigns over ssh, with a daemon of this test on 127.0.0.1 that stands for several hosts.
//! Skipped, loudly, without sshd or root.

use super::*;
use longhaul_checks::{free_tcp_port, wait_for_listener};
use longhaul_namespace::skip;

const SSHD: &str = "/usr/sbin/sshd";

/// A daemon, and a directory with keys and a configuration in which it is any host. `down`,
/// `locked` and `stranger` have one fault each.
struct Hosts {
    place: Place,
    _sshd: Program,
}

impl Hosts {
    fn new(campaign: &str) -> Option<Self> {
        for (program, package) in [(SSHD, "openssh-server"), ("/usr/bin/ssh", "openssh-client")] {
            if !Path::new(program).is_file() {
                skip(format!("campaigns over ssh, because {program} is missing: {package}"));
                return None;
            }
        }
        // sshd separates privileges there, and its package creates it at boot.
        if fs::create_dir_all("/run/sshd").is_err() {
            skip("campaigns over ssh, because sshd needs root for /run/sshd");
            return None;
        }
        let place = Place::new(campaign);
        let directory = place.runtime.path().canonicalize().unwrap();
        for key in ["host", "user", "other"] {
            let mut generate = Command::new("ssh-keygen");
            generate.args(["-q", "-t", "ed25519", "-N", "", "-f", key]).current_dir(&directory);
            Program::start(&mut generate).succeed(LIMIT);
        }
        let port = free_tcp_port();
        let at = directory.display();
        let mut sshd = Command::new(SSHD);
        sshd.args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string()]);
        for option in [
            format!("HostKey={at}/host"),
            format!("AuthorizedKeysFile={at}/user.pub"),
            "ListenAddress=127.0.0.1".to_owned(),
            "PidFile=none".to_owned(),
            "StrictModes=no".to_owned(),
            "UsePAM=no".to_owned(),
        ] {
            sshd.arg("-o").arg(option);
        }
        let sshd = wait_for_listener(Program::start(&mut sshd), port);
        let host = fs::read_to_string(directory.join("host.pub")).unwrap();
        let known = format!("[127.0.0.1]:{port} {host}");
        fs::write(directory.join("known"), known).unwrap();
        let configuration = format!(
            "Host down\n Port {}\nHost stranger\n UserKnownHostsFile /dev/null\nHost locked\n \
             IdentityFile {at}/other\nHost * !locked\n IdentityFile {at}/user\nHost *\n HostName \
             127.0.0.1\n Port {port}\n User root\n IdentitiesOnly yes\n IdentityAgent none\n \
             UserKnownHostsFile {at}/known\n GlobalKnownHostsFile /dev/null\n",
            free_tcp_port()
        );
        fs::write(directory.join("ssh"), configuration).unwrap();
        Some(Hosts { place, _sshd: sshd })
    }
}

/// Programs on `clients`, of which each point has the first or the first two.
fn on(clients: &str, script: &str) -> String {
    format!(
        "name = \"check\"\nrepeats = 1\nretries = 0\norder = \"listed\"\n[ssh]\nclients = \
         [{clients}]\nservers = [\"n3\"]\nconfig = \"ssh\"\nconnect_timeout_s = 5\n[axes]\nclients \
         = [1, 2]\n[[program]]\nname = \"p\"\nclient = '''{script}'''\npattern = \
         \"a=(?<a_bps>[0-9]+)\"\n"
    )
}

#[test]
fn programs_meet_in_every_topology() {
    require("iperf3", "iperf3");
    let _turn = Turn::take();
    let campaign = r#"
name = "check"
repeats = 1
limit_s = 60
[ssh]
clients = ["n1", "n2"]
servers = ["n3", "n4"]
config = "ssh"
[axes]
clients = [1, 2]
servers = [2]
[[program]]
name = "tcp"
client = "iperf3 --time 1"
[[program]]
name = "sleeper"
server = "sleep 1000.125"
client = "sh -c 'echo a=3 Mbit/s, {address}'"
pattern = 'a=(?<a>\d+) (?<a_unit>\S+),'
"#;
    let Some(hosts) = Hosts::new(campaign) else { return };
    let done = hosts.place.succeed("x.toml --out o --json");
    assert_eq!(json(&done)["measured"], 4, "{done}");
    for (key, result) in hosts.place.results() {
        let pairs = result["pairs"].as_array().unwrap();
        let clients = result["point"]["clients"].as_u64().unwrap();
        let names: Vec<_> = pairs.iter().map(|pair| (&pair["client"], &pair["server"])).collect();
        let client = if clients == 2 { "n2" } else { "n1" };
        assert_eq!(names, [(&"n1".into(), &"n3".into()), (&client.into(), &"n4".into())], "{key}");
        let value = if result["point"]["program"] == "tcp" { "goodput_bps" } else { "a_bps" };
        let sum: f64 = pairs.iter().map(|pair| pair["values"][value].as_f64().unwrap()).sum();
        let point = result["values"][value].as_f64().unwrap();
        assert!(sum > 0.0 && (point - sum).abs() <= sum * 1e-9, "{key}: {result}");
    }
    wait_until_gone("sleep 1000.125");
}

#[test]
fn failures_name_the_host_and_a_cure_and_other_points_go_on() {
    let works = "echo a=7";
    let lost = "sh -c 'if [ {clients} = 2 ]; then kill -9 $PPID; sleep 1; fi; echo a=7'";
    for (clients, script, part) in [
        ("\"n1\", \"down\"", works, "the client 2 on down, echo: the host is down or unreachable"),
        (
            "\"n1\", \"locked\"",
            works,
            "on locked, echo: ssh asks for a password or refuses the key",
        ),
        ("\"n1\", \"stranger\"", works, "on stranger, echo: the key of the host is unknown"),
        ("\"n1\", \"n2\"", lost, "sh: the connection was lost ("),
    ] {
        let Some(hosts) = Hosts::new(&on(clients, script)) else { return };
        let ended = hosts.place.run("x.toml --out o");
        assert_eq!(ended.status.code(), Some(1), "{ended}");
        let results = hosts.place.results();
        let of = |clients: u32| {
            let found = results.iter().find(|(_, result)| result["point"]["clients"] == clients);
            found.unwrap_or_else(|| panic!("{clients} clients: {ended}")).1
        };
        assert_eq!(of(1)["values"]["a_bps"], 7, "{ended}");
        let why = of(2)["failed"]["a_bps"].as_str().unwrap_or_default();
        assert!(why.contains(part) && !why.contains('\n'), "{why}\n{part}\n{ended}");
    }
    let Some(hosts) = Hosts::new(&on("\"n1\", \"n2\"", "no-such-program")) else { return };
    let ended = hosts.place.run("x.toml --out o");
    let part = "the client on n1, no-such-program: the program is not installed on this host";
    assert!(ended.stderr.contains(part), "{ended}");
}

#[test]
fn a_campaign_that_is_killed_ends_its_programs() {
    let Some(hosts) = Hosts::new(&on("\"n1\", \"n2\"", "sleep 1000.375")) else { return };
    let campaign = hosts.place.start("x.toml --out o");
    let deadline = Instant::now() + LIMIT;
    let runs = || processes_with("sleep 1000.375").iter().any(|line| line.starts_with("sleep"));
    while !runs() {
        assert!(Instant::now() < deadline, "{}", campaign.finish(LIMIT));
        std::thread::sleep(Duration::from_millis(20));
    }
    campaign.signal(libc::SIGKILL);
    campaign.finish(LIMIT);
    wait_until_gone("sleep 1000.375");
}

#[test]
fn hosts_that_are_missing_are_refused_before_anything_is_made() {
    let place = Place::new(&on("\"n1\"", "echo a=1"));
    let refused = place.run("x.toml --out o");
    assert_eq!(refused.status.code(), Some(2), "{refused}");
    assert!(refused.stderr.contains("'clients' = 2, and [ssh] names 1"), "{refused}");
    let other = place.run("x.toml --out o --clients a --servers=-b");
    assert!(other.stderr.contains("\"-b\" is no name of a host"), "{other}");
    let lab = place.run("iown2-c1 --reduced --out o --clients a --servers b");
    assert!(lab.stderr.contains("this campaign runs in labs"), "{lab}");
    let unnamed = place.run("iown2-c1 --out o");
    assert!(unnamed.stderr.contains("name them with --clients and --servers"), "{unnamed}");
    assert!(!place.runtime.path().join("o").exists());
}
