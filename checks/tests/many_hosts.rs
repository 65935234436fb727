//! A lab of more than two hosts: reachability, many to one, and the output of `lab status`.

use longhaul_checks::process::cpu_time;
use longhaul_checks::{
    Program, Ready, TestLab, free_tcp_port, require, wait_for_listener, wait_until_asleep,
};
use serde_json::Value;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// Port of a switch that leads to `leads_to`.
fn switch_port<'a>(status: &'a Value, site: usize, leads_to: &str) -> &'a Value {
    let ports = status["switches"][site]["ports"]
        .as_array()
        .unwrap_or_else(|| panic!("no switches: {status}"));
    let found = ports.iter().find(|port| port["leads_to"] == leads_to);
    found.unwrap_or_else(|| panic!("no port to {leads_to}: {status}"))
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Starts a server on host b. Returns it with the line of its client.
fn start_server(lab: &TestLab, options: &str) -> (Program, String) {
    let port = free_tcp_port();
    let line = format!("ib_write_bw -d longhaul0 -p {port} -s {SIZE} {options}");
    let server = wait_for_listener(lab.exec("b", &line), port);
    (server, format!("{line} 127.0.0.1"))
}

/// Bytes of a message.
const SIZE: u64 = 4096;

mod many_to_one {
    use super::*;

    const SENDERS: [&str; 3] = ["a", "c", "d"];
    /// Messages of each: three seconds at the rate of a port.
    const MESSAGES: u64 = 20_000;
    const RATE_BPS: f64 = 200e6;

    /// Two senders across the fibre and one beside the receiver, which has one port for all of
    /// them.
    #[test]
    fn senders_run_to_their_end_and_share_the_receivers_port() {
        require("ib_write_bw", "perftest");
        let lab = TestLab::up("--hosts 4 --rate 200M --distance 1km");
        // An ACK timeout of a second: the machine may be busy.
        let servers = SENDERS.map(|_| start_server(&lab, &format!("-n {MESSAGES} -u 18")));
        let begun = Instant::now();
        let clients: Vec<Program> = SENDERS
            .iter()
            .zip(&servers)
            .map(|(sender, (_, line))| lab.exec(sender, line))
            .collect();
        for client in clients {
            client.succeed(LIMIT);
        }
        let took = begun.elapsed().as_secs_f64();
        for (server, _) in servers {
            server.succeed(LIMIT);
        }
        let least = (SENDERS.len() as u64 * MESSAGES * SIZE * 8) as f64 / RATE_BPS;
        assert!(took >= least, "{took} s through one port that needs {least} s");

        let status = lab.status();
        let receiver = switch_port(&status, 1, "host b");
        let sent = number(receiver, "output_frames");
        assert_eq!(number(receiver, "delivered_frames"), sent, "{receiver}");
        assert_eq!(number(receiver, "flooded_frames"), 0, "{receiver}");
        let in_by =
            |site, leads_to| number(switch_port(&status, site, leads_to), "received_frames");
        assert_eq!(sent, in_by(1, "host d") + in_by(1, "fibre"), "{status}");
        assert_eq!(in_by(1, "fibre"), in_by(0, "host a") + in_by(0, "host c"), "{status}");
        let queued = number(receiver, "queue_bytes_max");
        assert!(
            queued > 128 * 4096,
            "more than one sender's window waited at the port: {receiver}"
        );
    }
}

mod reach {
    use super::*;

    #[test]
    fn hosts_of_one_site_do_not_use_the_fibre() {
        require("rping", "rdmacm-utils");
        let lab = TestLab::up("--hosts 3 --distance 100km");
        let server = lab.exec("c", "rping -s -a 10.77.0.3 -C 20 -V");
        let deadline = Instant::now() + LIMIT;
        while lab.status()["hosts"][2]["programs"] == 0 {
            assert!(Instant::now() < deadline, "it does not attach");
        }
        // Then it listens.
        wait_until_asleep(server.id());
        lab.exec("a", "rping -c -a 10.77.0.3 -C 20 -V").succeed(LIMIT);
        server.finish(LIMIT);
        let status = lab.status();
        assert_eq!(number(&status["link"][0], "entered_frames"), 0, "{status}");
        assert!(number(switch_port(&status, 0, "host c"), "delivered_frames") > 20, "{status}");
    }

    #[test]
    fn across_the_fibre_and_two_accelerators() {
        require("rping", "rdmacm-utils");
        let lab = TestLab::up("--hosts 26 --distance 100km --accelerate");
        lab.pair(
            "rping -s -a 10.77.0.2 -C 10 -V",
            "rping -c -a 10.77.0.2 -C 10 -V",
            Ready::Attached,
            LIMIT,
        );
        let status = lab.status();
        assert_eq!(status["hosts"][25]["name"], "z", "{status}");
        assert!(number(switch_port(&status, 1, "fibre"), "received_frames") > 10, "{status}");
    }
}

mod hosts {
    use super::*;

    #[test]
    fn that_the_lab_has_not_are_answered_with_those_that_it_has() {
        let lab = TestLab::up("--hosts 3");
        let refused = lab.exec("d", "true").finish(LIMIT);
        assert_eq!(refused.status.code(), Some(1), "{refused}");
        let listed =
            "no host 'd' in the lab: its hosts are a (10.77.0.1), b (10.77.0.2) and c (10.77.0.3)";
        assert!(refused.stderr.contains(listed), "{refused}");
        lab.exec("c", "true").succeed(LIMIT);
    }

    #[test]
    fn and_switches_are_told_in_words_too() {
        let lab = TestLab::up("--hosts 3 --ecn");
        let mut command = lab.runtime().longhaul("lab status --name check");
        let text = Program::start(&mut command).succeed(LIMIT).stdout;
        for part in [
            "3 hosts",
            "ECN from 1 MiB to 4 MiB",
            "host c 10.77.0.3",
            "switch at site a, host c: 0 frames in",
        ] {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
    }

    /// An idle lab sleeps, whatever the number of its ports.
    #[test]
    fn that_have_nothing_to_do_cost_next_to_nothing() {
        let lab = TestLab::up("--hosts 26");
        let pid = u32::try_from(number(&lab.status(), "pid")).expect("a process id");
        let used = || cpu_time(pid).expect("the daemon's times").own;
        let (before, begun) = (used(), Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        // A loop that never sleeps takes all of it.
        let (used, all) = (used() - before, begun.elapsed());
        assert!(used < all / 5, "{used:?} of {all:?}");
    }
}
