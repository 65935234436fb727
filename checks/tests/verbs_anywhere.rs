//! Programs on a machine's own network: `longhaul exec` without options, and `longhaul env`, as a
//! user without privileges in a network namespace.

use longhaul_checks::{
    Finished, LabHosts, Program, Ready, RuntimeDir, Turn, free_tcp_port, longhaul, require,
};
use longhaul_namespace::{in_namespace, sh, skip};
use std::net::UdpSocket;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
/// The user without privileges.
const NOBODY: u32 = 65534;
/// A default route.
const ROUTED: &str = "ip link set lo up; ip link add d0 type veth peer name d1; ip link set d0 up; \
                      ip link set d1 up; ip address add 192.0.2.7/24 dev d0; \
                      ip route add default via 192.0.2.1";

/// A user's shell on a machine of its own.
struct Machine {
    runtime: RuntimeDir,
}

impl Machine {
    fn new() -> Self {
        let runtime = RuntimeDir::new();
        chown(runtime.path(), Some(NOBODY), Some(NOBODY)).expect("root");
        Machine { runtime }
    }

    fn shell(&self, line: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let dir = longhaul().parent().map(Path::to_owned).unwrap_or_default();
        let mut command = Command::new("bash");
        command.args(["-ec", line]).current_dir(self.runtime.path());
        command.env("PATH", format!("{}:{path}", dir.display())).env("HOME", "/nonexistent");
        command.env("XDG_RUNTIME_DIR", self.runtime.path()).env_remove("LD_PRELOAD");
        // Variables of the tests, such as that of their skips, are not the program's.
        let of_tests = std::env::vars_os().map(|(name, _)| name);
        for name in of_tests.filter(|name| name.as_encoded_bytes().starts_with(b"LONGHAUL_")) {
            command.env_remove(name);
        }
        command.uid(NOBODY).gid(NOBODY);
        command
    }

    fn run(&self, line: &str) -> Finished {
        Program::start(&mut self.shell(line)).finish(LIMIT)
    }

    fn prints(&self, line: &str) -> String {
        Program::start(&mut self.shell(line)).succeed(LIMIT).stdout
    }

    fn refuses(&self, line: &str, parts: &[&str]) {
        let done = self.run(line);
        assert!(!done.status.success(), "{line}: {done}");
        for part in parts {
            assert!(done.stderr.contains(part), "{line}: {part:?} is not in {}", done.stderr);
        }
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
}

/// Runs `test` on a machine with these interfaces.
fn on_machine(network: &str, test: impl FnOnce(&Machine) + Send) {
    in_namespace(|| {
        let others_may_run_it = Command::new(longhaul()).arg("--version").uid(NOBODY).output();
        if !others_may_run_it.is_ok_and(|done| done.status.success()) {
            return skip("the program is in a directory that other users may not enter");
        }
        sh(network);
        test(&Machine::new());
    });
}

#[test]
fn a_program_is_on_the_default_routes_interface() {
    require("ibv_devinfo", "ibverbs-utils");
    on_machine(ROUTED, |machine| {
        let text = machine.prints("longhaul exec -- ibv_devinfo -v");
        assert!(text.contains("GID[  0]:\t\t::ffff:192.0.2.7, RoCE v2"), "{text}");
        let files = "/sys/class/infiniband/longhaul0/ports/1";
        let read = format!("longhaul exec -- cat {files}/gids/0 {files}/gid_attrs/ndevs/0");
        assert_eq!(machine.prints(&read), "0000:0000:0000:0000:0000:ffff:c000:0207\nd0\n");
    });
}

#[test]
fn a_machine_with_ipv6_alone_has_an_ipv6_device() {
    require("ibv_devinfo", "ibverbs-utils");
    // The namespace begins without IPv6.
    let network = "sysctl -qw net.ipv6.conf.all.disable_ipv6=0; \
                   ip link add d0 type veth peer name d1; ip link set d0 up; ip link set d1 up; \
                   ip address add 2001:db8::7/64 dev d0 nodad; \
                   ip route add default via 2001:db8::1";
    on_machine(network, |machine| {
        let text = machine.prints("longhaul exec -- ibv_devinfo -v");
        assert!(text.contains("GID[  0]:\t\t2001:db8::7, RoCE v2"), "{text}");
    });
}

#[test]
fn what_keeps_a_program_from_running_is_named_with_its_cure() {
    on_machine("ip link set lo up", |machine| {
        machine.refuses("longhaul exec -- true", &["no default route", "--udp=127.0.0.1"]);
        machine.refuses("longhaul env", &["no default route", "--udp=127.0.0.1"]);
        machine.refuses("longhaul exec --udp=192.0.2.7 -- true", &["not an address", "ip address"]);
        machine.refuses("longhaul exec --lab l -- true", &["--host"]);
        machine.refuses("longhaul exec --ip 192.0.2.7/24 -- true", &["--tap", "--interface"]);
        machine.refuses("longhaul env --host a", &["longhaul exec --host a -- bash"]);
        let _other = UdpSocket::bind("127.0.0.1:4791").expect("a free port");
        machine.refuses("longhaul exec --udp=127.0.0.1 -- true", &["another process", "127.0.0.2"]);
    });
}

#[test]
fn a_shell_has_the_environment_of_exec() {
    require("ibv_devices", "ibverbs-utils");
    on_machine(ROUTED, |machine| {
        const OURS: &str = "env | grep -E '^(LONGHAUL_|LD_PRELOAD)' | sort";
        let by_exec = machine.prints(&format!("longhaul exec -- bash -c \"{OURS}\""));
        assert!(by_exec.contains("LONGHAUL_IP=192.0.2.7\n"), "{by_exec}");
        // As after an earlier environment, which leaves nothing behind.
        let eval = "export LONGHAUL_TAP=tap0; eval \"$(longhaul env)\"";
        assert_eq!(machine.prints(&format!("{eval}; {OURS}")), by_exec);
        assert_eq!(machine.prints(&format!("{eval}; {eval}; {OURS}")), by_exec, "twice");
        let nested = format!("{eval}; longhaul exec -- bash -c \"{OURS}\"");
        assert_eq!(machine.prints(&nested), by_exec, "in each other");
        let text = machine.prints(&format!("{eval}; ibv_devices; ls /sys/class/infiniband"));
        assert!(text.contains("longhaul0") && text.contains("node GUID"), "{text}");
        assert!(text.ends_with("\nlonghaul0\n"), "{text}");
        let lines = machine.prints("longhaul env --format env-file | sort");
        assert_eq!(lines, by_exec);
        let json = machine.prints("longhaul env --format json");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        for line in by_exec.lines() {
            let (name, value) = line.split_once('=').expect("a variable");
            assert_eq!(json[name], value, "{name}");
        }
        let others = machine.prints("LD_PRELOAD=/lib/other.so longhaul env | grep LD_PRELOAD");
        assert!(others.ends_with(":/lib/other.so\n"), "{others}");
    });
}

#[test]
fn two_programs_on_one_machine_have_an_address_each() {
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    on_machine("ip link set lo up", |machine| {
        let bandwidth = "ib_write_bw -d longhaul0 -R -s 4096 -n 1000";
        let server = format!("longhaul exec --udp=127.0.0.1 -- {bandwidth}");
        let mut server = Program::start(&mut machine.shell(&server));
        // It is ready once it has the port.
        while UdpSocket::bind("127.0.0.1:4791").is_ok() {
            assert!(server.is_running(), "{}", server.finish(LIMIT));
            std::thread::sleep(Duration::from_millis(10));
        }
        let client = format!("longhaul exec --udp=127.0.0.2 -- {bandwidth} 127.0.0.1");
        let text = machine.prints(&client);
        assert!(text.lines().any(|line| line.trim_start().starts_with("4096 ")), "{text}");
        server.succeed(LIMIT);
        let counters = "longhaul counters --dir longhaul/udp-127.0.0.2/counters --all --json";
        let json: serde_json::Value =
            serde_json::from_str(&machine.prints(counters)).expect("JSON");
        let sent = json["device"]["port_xmit_packets"].as_u64();
        assert!(sent.is_some_and(|sent| sent >= 1000), "{json}");
    });
}

#[test]
fn a_program_that_cannot_be_preloaded_is_told_in_one_line() {
    require("busybox", "busybox-static");
    let _turn = Turn::take();
    on_machine("ip link set lo up", |machine| {
        let told = machine.prints("longhaul exec --udp=127.0.0.1 -- busybox echo runs 2>&1");
        assert_eq!(
            told,
            "longhaul: 'busybox' sees no RDMA device: it is linked statically, so that no library \
             can be preloaded\nruns\n"
        );
        let silent = machine.prints("longhaul exec --udp=127.0.0.1 -- echo runs 2>&1");
        assert_eq!(silent, "runs\n");
    });
}

#[test]
fn a_static_program_on_a_lab_host_uses_its_network() {
    require("busybox", "busybox-static");
    let Some(hosts) = LabHosts::up("") else { return };
    let lab = hosts.lab();
    let port = free_tcp_port();
    let server = format!("busybox nc -l -p {port} -e busybox uname -n");
    // Standard input is empty, and nc waits for the answer.
    let client = format!("busybox nc b {port}");
    let (_, client) = lab.pair(&server, &client, Ready::Tcp(port), LIMIT);
    assert_eq!((client.stdout.as_str(), client.stderr.as_str()), ("b\n", ""));
}

#[test]
fn a_static_program_on_a_lab_host_finds_the_devices_files() {
    require("busybox", "busybox-static");
    let Some(hosts) = LabHosts::up("") else { return };
    let prints = |program: &str| hosts.run(program, LIMIT).stdout;
    let files = "/sys/class/infiniband/longhaul0/ports/1";
    let expected = "0000:0000:0000:0000:0000:ffff:0a4d:0001\nlh0\nRoCE v2\n";
    let read = format!("cat {files}/gids/0 {files}/gid_attrs/ndevs/0 {files}/gid_attrs/types/0");
    assert_eq!(prints(&read), expected);
    assert_eq!(prints(&format!("busybox {read}")), expected);
    assert_eq!(prints("busybox ls /sys/class/infiniband"), "longhaul0\n");
}
