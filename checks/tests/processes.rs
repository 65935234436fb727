//! Several processes with a device on one lab host, and in one `longhaul exec`: slots, their bound,
//! and their return.

use longhaul_checks::{
    Finished, LabHosts, Program, TestLab, Turn, longhaul, require, wait_until_asleep,
};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

/// Runs a script by the shell on host a.
fn shell(lab: &TestLab, script: &str) -> Finished {
    let mut command = lab.command("a", "bash -c");
    command.arg(script);
    Program::start(&mut command).finish(LIMIT)
}

mod in_one_shell {
    use super::*;

    #[test]
    fn a_server_and_its_client_reach_each_other() {
        require("ib_write_bw", "perftest");
        let Some(hosts) = LabHosts::up("") else { return };
        // A client that comes before the server is ready fails.
        let done = shell(
            hosts.lab(),
            "ib_write_bw -d longhaul0 -F -n 200 -u 18 >/dev/null & server=$!
             tries=0
             until ib_write_bw -d longhaul0 -F -n 200 -u 18 10.77.0.1; do
                 tries=$((tries + 1)); [ $tries -lt 100 ] || exit 1; sleep 0.1
             done
             wait $server",
        );
        assert!(done.status.success(), "{done}");
        assert!(done.stdout.contains("65536      200"), "{done}");
        assert!(!done.stderr.contains("longhaul:"), "{done}");
    }

    #[test]
    fn many_that_start_and_end_at_once_have_a_slot_each() {
        require("ibv_devinfo", "ibverbs-utils");
        let lab = TestLab::up("");
        let done = shell(
            &lab,
            "for worker in $(seq 8); do
                 (for round in $(seq 20); do ibv_devinfo -d longhaul0 || exit 1; done) &
                 workers=\"$workers $!\"
             done
             for worker in $workers; do wait $worker || exit 1; done",
        );
        assert!(done.status.success() && done.stderr.is_empty(), "{done}");
        assert_eq!(done.stdout.matches("hca_id:\tlonghaul0").count(), 160, "{done}");
    }

    #[test]
    fn a_forked_child_has_a_slot_of_its_own() {
        let lab = TestLab::up("");
        let script = "
import os, sys
from pyverbs.device import Context
parent = Context(name='longhaul0')
pid = os.fork()
child = Context(name='longhaul0') if pid == 0 else None
if pid == 0:
    os._exit(0 if child.query_port(1).state == 4 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
        let mut command = lab.command("a", "/usr/bin/python3 -c");
        Program::start(command.arg(script)).succeed(LIMIT);
    }
}

mod the_bound {
    use super::*;

    /// A lab of 26 hosts, each with four slots, and four processes on host a.
    fn full_host() -> (TestLab, Vec<Program>) {
        require("rping", "rdmacm-utils");
        require("ibv_devinfo", "ibverbs-utils");
        let lab = TestLab::up("--hosts 26");
        let start = |port| lab.exec("a", &format!("rping -s -a 10.77.0.1 -p {port}"));
        let servers = (8001..8005).map(start).collect();
        wait_for_programs(&lab, 4);
        (lab, servers)
    }

    /// Waits until the lab counts `count` processes on host a.
    fn wait_for_programs(lab: &TestLab, count: u64) {
        let deadline = Instant::now() + LIMIT;
        while lab.status()["hosts"][0]["programs"] != count {
            assert!(Instant::now() < deadline, "not {count}: {}", lab.status());
        }
    }

    #[test]
    fn is_named_with_the_cure_and_concerns_devices_only() {
        let (lab, _servers) = full_host();
        let done = lab.exec("a", "ibv_devinfo").finish(LIMIT);
        let told = "host a already has 4 of at most 4 processes on its device; wait for one to end";
        assert!(done.stderr.contains(told), "{done}");
        assert!(!done.stdout.contains("PORT_ACTIVE"), "{done}");
        lab.exec("a", "true").succeed(LIMIT);
        lab.exec("b", "ibv_devinfo").succeed(LIMIT);
    }

    #[test]
    fn counts_no_killed_process() {
        let (lab, servers) = full_host();
        servers.iter().for_each(|server| server.signal(libc::SIGKILL));
        // Waits for them.
        drop(servers);
        lab.exec("a", "ibv_devinfo").succeed(LIMIT);
        let server = lab.exec("a", "rping -s -a 10.77.0.1 -p 9001 -C 3");
        wait_for_programs(&lab, 1);
        // Then it listens.
        wait_until_asleep(server.id());
        lab.exec("b", "rping -c -a 10.77.0.1 -p 9001 -C 3").succeed(LIMIT);
        server.succeed(LIMIT);
    }
}

mod over_udp {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_second_process_with_an_address_is_refused_with_the_cure() {
        require("rping", "rdmacm-utils");
        let _turn = Turn::take();
        // The kernel's table has the address and the port, 4791, in hexadecimal.
        let script = "first=; trap 'kill $first $second' EXIT
             rping -s -a 127.0.77.3 -p 8001 & first=$!
             until grep -q 034D007F:12B7 /proc/net/udp; do sleep 0.05; done
             exec 3< <(exec rping -s -a 127.0.77.3 -p 8002 2>&1); second=$!
             read -r line <&3; echo \"$line\"";
        let mut command = Command::new(longhaul());
        command.args(["exec", "--udp=127.0.77.3", "--", "bash", "-c", script]);
        let done = Program::start(command.env_remove("LD_PRELOAD")).finish(LIMIT);
        let told = "UDP 127.0.77.3:4791 is in use: by another process with this device address \
                    (give each its own, such as 127.0.0.2)";
        assert!(done.stdout.contains(told), "{done}");
    }
}
