//! Hosts that die in the middle of a transfer, and interfaces whose MTUs differ: what the peer
//! sees, and that the host can be used again.

use longhaul_checks::{LabHosts, Program, Ready, TestLab, free_tcp_port, require};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// A counter of a host.
fn counter(lab: &TestLab, host: usize, name: &str) -> u64 {
    lab.status()["hosts"][host]["counters"][name].as_u64().unwrap_or(0)
}

mod death {
    use super::*;

    /// Starts a transfer without end from host a to host b, which `frames` of host b count, and
    /// kills the end on host b. Returns the end on host a.
    fn of_the_receiver(lab: &TestLab, server: &str, client: &str, frames: &str) -> Program {
        let port = free_tcp_port();
        let line = |text: &str| text.replace("PORT", &port.to_string());
        let (server, mut client) = lab.start_pair(&line(server), &line(client), Ready::Tcp(port));
        wait_until("data flows", || counter(lab, 1, frames) > 1000);
        assert!(client.is_running());
        server.signal(libc::SIGKILL);
        client
    }

    /// A transfer to host b and its end, with one of each kind.
    fn is_usable(lab: &TestLab) {
        let port = free_tcp_port();
        let line = format!("ib_write_bw -d longhaul0 -F -p {port} -n 100 -u 18");
        lab.pair(&line, &format!("{line} b"), Ready::Tcp(port), LIMIT);
    }

    fn leaves_nothing(lab: &TestLab) {
        lab.down();
        assert_eq!(lab.runtime().leftovers(), Vec::<PathBuf>::new());
    }

    #[test]
    fn is_an_error_of_the_requester_and_the_host_is_usable_again() {
        require("ib_write_bw", "perftest");
        let Some(hosts) = LabHosts::up("--distance 10km") else { return };
        let lab = hosts.lab();
        let line = "ib_write_bw -d longhaul0 -F -p PORT -s 65536 -n 5000000 -u 16";
        let client = of_the_receiver(lab, line, &format!("{line} b"), "rx_frames");
        let client = client.finish(LIMIT);
        assert!(!client.status.success(), "{client}");
        let told = format!("{}{}", client.stdout, client.stderr);
        // perftest prints the status of the completion: IBV_WC_RETRY_EXC_ERR.
        assert!(told.contains("Failed status 12"), "{client}");
        is_usable(lab);
        leaves_nothing(lab);
    }

    #[test]
    fn resets_its_tcp_connections() {
        require("iperf3", "iperf3");
        let Some(hosts) = LabHosts::up("--distance 10km") else { return };
        let lab = hosts.lab();
        let client = of_the_receiver(
            lab,
            "iperf3 -s -p PORT",
            "iperf3 -c b -p PORT -t 600",
            "kernel_rx_frames",
        );
        let client = client.finish(LIMIT);
        assert!(!client.status.success(), "{client}");
        let told = format!("{}{}", client.stdout, client.stderr);
        assert!(told.contains("error"), "{client}");
        let port = free_tcp_port();
        let server = format!("iperf3 -s -1 -p {port}");
        let client = format!("iperf3 -c b -p {port} -n 1M");
        lab.pair(&server, &client, Ready::Tcp(port), LIMIT);
        leaves_nothing(lab);
    }

    #[test]
    fn of_the_requester_frees_the_responders_host() {
        require("ib_read_bw", "perftest");
        let Some(hosts) = LabHosts::up("--distance 10km --accelerate") else { return };
        let lab = hosts.lab();
        let port = free_tcp_port();
        let line = format!("ib_read_bw -d longhaul0 -F -p {port} -s 65536 -n 5000000 -u 18");
        let (server, client) = lab.start_pair(&line, &format!("{line} b"), Ready::Tcp(port));
        wait_until("data flows", || counter(lab, 0, "rx_frames") > 1000);
        client.signal(libc::SIGKILL);
        // The exchange over TCP is reset, and perftest ends.
        server.finish(LIMIT);
        wait_until("both slots are free", || {
            [0, 1].iter().all(|host| lab.status()["hosts"][*host]["programs"] == 0)
        });
        is_usable(lab);
        leaves_nothing(lab);
    }
}

mod mtu {
    use super::*;

    /// A lab whose host a has an interface with a smaller MTU than host b's.
    fn small_at_a(mtu: u32) -> Option<LabHosts> {
        require("ip", "iproute2");
        let hosts = LabHosts::up("")?;
        hosts.run(&format!("ip link set lh0 mtu {mtu}"), LIMIT);
        Some(hosts)
    }

    #[test]
    fn of_one_interface_limits_tcp_in_both_directions() {
        require("iperf3", "iperf3");
        let Some(hosts) = small_at_a(1500) else { return };
        for direction in ["", "-R"] {
            let port = free_tcp_port();
            let server = format!("iperf3 -s -1 -p {port}");
            let client = format!("iperf3 -c b -p {port} -n 4M {direction}");
            hosts.lab().pair(&server, &client, Ready::Tcp(port), LIMIT);
        }
    }

    #[test]
    fn of_an_interface_does_not_limit_the_device() {
        require("ib_write_bw", "perftest");
        let Some(hosts) = small_at_a(1500) else { return };
        let port = free_tcp_port();
        let line = format!("ib_write_bw -d longhaul0 -F -p {port} -m 4096 -n 200 -u 18");
        let (_, client) = hosts.lab().pair(&line, &format!("{line} b"), Ready::Tcp(port), LIMIT);
        assert!(client.stdout.contains("4096[B]"), "{client}");
    }

    /// The sender's kernel refuses what exceeds its own MTU, or fragments it; the receiver accepts
    /// any frame that the fibre carries.
    #[test]
    fn of_one_interface_limits_its_own_datagrams_alone() {
        require("ping", "iputils-ping");
        let Some(hosts) = small_at_a(1500) else { return };
        let ping = |host: &str, line: &str| {
            Program::start(&mut hosts.lab().command(host, line)).finish(LIMIT)
        };
        let refused = ping("a", "ping -n -c 1 -W 5 -M do -s 4000 b");
        assert!(refused.stderr.contains("message too long, mtu=1500"), "{refused}");
        for (host, line) in [("a", "ping -n -c 3 -s 4000 b"), ("b", "ping -n -c 3 -M do -s 4000 a")]
        {
            let sent = ping(host, line);
            assert!(sent.status.success(), "{sent}");
        }
    }
}
