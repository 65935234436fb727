//! Hosts of a lab with a network: the kernel's traffic over the fibre, names, a user without
//! privilege, what remains after a lab, and labs without it.

use longhaul_checks::{
    Program, Ready, RuntimeDir, TestLab, Turn, free_tcp_port, longhaul, require, wait_for_listener,
};
use longhaul_namespace::skip;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

/// A lab whose hosts have a network; `None`, loudly, where there can be none.
fn lab(arguments: &str) -> Option<TestLab> {
    let lab = TestLab::up(&format!("--network kernel {arguments}"));
    let network = &lab.status()["network"];
    if network["kind"] == "kernel" {
        return Some(lab);
    }
    skip(format!("hosts have no network here: {}", network["why"]));
    None
}

/// The times of ping's last line, in ms: least and mean.
fn round_trips(text: &str) -> (f64, f64) {
    let times = text.rsplit(" = ").next().unwrap_or_default();
    let mut times = times.split('/').map(|time| time.parse().unwrap_or(f64::NAN));
    (times.next().unwrap_or(f64::NAN), times.next().unwrap_or(f64::NAN))
}

mod traffic {
    use super::*;

    #[test]
    fn a_ping_takes_the_round_trip_of_the_fibre() {
        require("ping", "iputils-ping");
        let Some(lab) = lab("--distance 1000km") else { return };
        let ping = lab.exec("a", "ping -n -c 3 b").succeed(LIMIT);
        let (least, _) = round_trips(&ping.stdout);
        assert!(least >= 10.0, "{least} ms over 1000 km: {ping}");
        assert!(ping.stdout.contains("10.77.0.2"), "{ping}");
        let hosts = &lab.status()["hosts"];
        for host in [0, 1] {
            let counters = &hosts[host]["counters"];
            assert!(counters["kernel_rx_frames"].as_u64() >= Some(3), "{counters}");
            assert_eq!(counters["drops_not_roce"], 0, "{counters}");
        }
    }

    /// A server of the directory that it runs in, and a client that prints what it gets.
    const SERVER: &str = "import http.server as h, sys
h.HTTPServer(('b', int(sys.argv[1])), h.SimpleHTTPRequestHandler).serve_forever()";
    const CLIENT: &str = "import sys, urllib.request as u
bytes = u.urlopen('http://b:%s/stream' % sys.argv[1]).read()
open('copy', 'wb').write(bytes)";

    #[test]
    fn tcp_delivers_every_byte_through_switches_and_across_loss() {
        require("python3", "python3");
        let Some(lab) = lab("--hosts 3 --distance 10km --loss 1e-3") else { return };
        let stream: Vec<u8> =
            (0..16_usize << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        let dir = lab.runtime().path();
        fs::write(dir.join("stream"), &stream).unwrap();
        let port = free_tcp_port();
        let python = |host, script: &str| {
            let mut command = lab.command(host, "python3 -c");
            command.arg(script).arg(port.to_string()).current_dir(dir);
            Program::start(&mut command)
        };
        let _server = wait_for_listener(python("b", SERVER), port);
        python("c", CLIENT).succeed(LIMIT);
        assert!(fs::read(dir.join("copy")).unwrap() == stream, "damaged");
        let split = lab.status()["hosts"][1]["counters"]["kernel_tx_frames"].as_u64().unwrap();
        assert!(split >= (stream.len() / 9000) as u64, "{split} frames of at most 9000 bytes");
    }

    #[test]
    fn rdma_and_its_exchange_over_tcp_cross_the_same_fibre() {
        require("ib_write_bw", "perftest");
        let Some(lab) = lab("--distance 1km") else { return };
        let port = free_tcp_port();
        let line = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 -n 200 -u 18");
        lab.pair(&line, &format!("{line} b"), Ready::Tcp(port), LIMIT);
        let counters = &lab.status()["hosts"][0]["counters"];
        assert!(counters["tx_frames"].as_u64() >= Some(200 * 16), "{counters}");
        assert!(counters["kernel_tx_frames"].as_u64() > Some(0), "{counters}");
    }
}

mod hosts {
    use super::*;

    #[test]
    fn have_their_names_and_addresses_and_those_of_others() {
        let Some(lab) = lab("--hosts 3") else { return };
        for (host, address) in [("a", "10.77.0.1"), ("b", "10.77.0.2"), ("c", "10.77.0.3")] {
            let found = lab.exec("a", &format!("getent ahostsv4 {host}")).succeed(LIMIT);
            assert!(found.stdout.starts_with(address), "{found}");
            let name = lab.exec(host, "uname -n").succeed(LIMIT);
            assert_eq!(name.stdout.trim_end(), host);
            let interface = lab.exec(host, "cat /proc/net/dev").succeed(LIMIT);
            assert!(interface.stdout.contains("lh0:"), "{interface}");
        }
    }

    #[test]
    fn keep_the_working_directory_of_their_programs() {
        let Some(lab) = lab("") else { return };
        let mut command = lab.command("b", "pwd -P");
        let there = Program::start(command.current_dir(lab.runtime().path())).succeed(LIMIT);
        assert_eq!(Path::new(there.stdout.trim_end()), lab.runtime().path());
    }

    #[test]
    fn start_programs_on_each_other() {
        let Some(lab) = lab("") else { return };
        let exec = format!("{} exec --lab check --host b -- uname -n", longhaul().display());
        let there = lab.exec("a", &exec).succeed(LIMIT);
        assert_eq!(there.stdout.trim_end(), "b");
    }
}

mod ipv6 {
    use super::*;

    #[test]
    fn is_on_every_host_beside_ipv4() {
        require("ping", "iputils-ping");
        require("iperf3", "iperf3");
        let Some(lab) = lab("--distance 100km") else { return };
        let ping = lab.exec("a", "ping -6 -n -c 3 b6").succeed(LIMIT);
        assert!(ping.stdout.contains("fd77::a4d:2"), "{ping}");
        assert!(round_trips(&ping.stdout).0 >= 1.0, "{ping}");
        let port = free_tcp_port();
        let server = format!("iperf3 -6 -s -1 -p {port}");
        let client = format!("iperf3 -6 -c b6 -p {port} -n 4M");
        lab.pair(&server, &client, Ready::Tcp(port), LIMIT);
    }

    #[test]
    fn has_gids_of_its_own_beside_that_of_ipv4() {
        require("ibv_devinfo", "ibverbs-utils");
        require("ib_write_bw", "perftest");
        require("rping", "rdmacm-utils");
        let Some(lab) = lab("--distance 10km --accelerate") else { return };
        let addresses = lab.exec("b", "ip -o address show dev lh0").succeed(LIMIT).stdout;
        let of_interface: Vec<&str> = addresses.split(" inet").skip(1).collect();
        let info = lab.exec("b", "ibv_devinfo -v").succeed(LIMIT).stdout;
        let ways = [
            ("::ffff:10.77.0.2", "10.77.0.2", "10.77.0.2"),
            ("fd77::a4d:2", "fd77::a4d:2", "fd77::a4d:2"),
            ("fe80::a4d:2", "fe80::a4d:2", "fe80::a4d:2%lh0"),
        ];
        assert_eq!(of_interface.len(), ways.len(), "{addresses}");
        for (index, (gid, address, name)) in ways.into_iter().enumerate() {
            assert!(info.contains(&format!("GID[{index:>3}]:\t\t{gid}, RoCE v2")), "{info}");
            assert!(addresses.contains(&format!(" {address}/")), "{addresses}");
            let port = free_tcp_port();
            let line =
                format!("ib_write_bw -d longhaul0 -F -x {index} -p {port} -s 65536 -n 200 -u 18");
            let (_, client) = lab.pair(&line, &format!("{line} b"), Ready::Tcp(port), LIMIT);
            assert!(client.stdout.contains(&format!("GID index       : {index}")), "{client}");
            let of = |role| format!("rping {role} -a {name} -C 10 -V");
            lab.pair(&of("-s"), &of("-c"), Ready::Attached, LIMIT);
        }
        let next = "ls /sys/class/infiniband/longhaul0/ports/1/gids";
        assert_eq!(lab.exec("b", next).succeed(LIMIT).stdout, "0\n1\n2\n");
    }

    #[test]
    fn is_the_devices_first_address_on_request() {
        require("ib_write_bw", "perftest");
        require("rping", "rdmacm-utils");
        let Some(lab) = lab("--distance 10km --accelerate --hosts 3 --ipv6") else { return };
        let found = lab.exec("c", "getent ahosts b").succeed(LIMIT);
        assert!(found.stdout.starts_with("fd77::a4d:2"), "{found}");
        let port = free_tcp_port();
        // By itself perftest takes the GID of an IPv4 address.
        let line = format!("ib_write_bw -d longhaul0 -F -x 0 -p {port} -s 65536 -n 200 -u 18");
        let (_, client) = lab.pair(&line, &format!("{line} b4"), Ready::Tcp(port), LIMIT);
        let gid = "GID: 253:119:00:00:00:00:00:00:00:00:00:00:10:77:00:02";
        assert!(client.stdout.contains(gid), "{client}");
        lab.pair(
            "rping -s -a fd77::a4d:2 -C 10 -V",
            "rping -c -a fd77::a4d:2 -C 10 -V",
            Ready::Attached,
            LIMIT,
        );
        let status = lab.status();
        assert!(status["hosts"][0]["counters"]["tx_frames"].as_u64() >= Some(200 * 16), "{status}");
        let mut command = lab.runtime().longhaul("lab status --name check");
        let text = Program::start(&mut command).succeed(LIMIT).stdout;
        assert!(text.contains("host b fd77::a4d:2"), "{text}");
    }
}

mod without_privilege {
    use super::*;

    const NOBODY: u32 = 65534;

    /// `longhaul` as a user without privilege.
    fn as_nobody(runtime: &RuntimeDir, arguments: &str) -> Command {
        let mut command = Command::new("setpriv");
        let ids = format!("--reuid={NOBODY} --regid={NOBODY} --clear-groups");
        command
            .args(ids.split(' '))
            .arg(longhaul())
            .args(arguments.split(' '))
            .env("XDG_RUNTIME_DIR", runtime.path())
            .env_remove("LD_PRELOAD")
            .current_dir("/");
        command
    }

    /// Takes the lab down.
    struct Down<'a>(&'a RuntimeDir);

    impl Drop for Down<'_> {
        fn drop(&mut self) {
            // It may be down already.
            let _ = as_nobody(self.0, "lab down").output();
        }
    }

    #[test]
    fn hosts_have_a_network_in_a_user_namespace() {
        require("ping", "iputils-ping");
        require("setpriv", "util-linux");
        let _turn = Turn::take();
        let runtime = RuntimeDir::new();
        if chown(runtime.path(), Some(NOBODY), Some(NOBODY)).is_err() {
            return skip("becoming another user needs root");
        }
        let version = as_nobody(&runtime, "--version").output().expect("setpriv");
        if !version.status.success() {
            return skip("another user may not run the program where it was built");
        }
        let up = Program::start(&mut as_nobody(&runtime, "lab up --distance 100km"));
        let _down = Down(&runtime);
        let up = up.succeed(LIMIT);
        if !up.stderr.is_empty() {
            return skip(format!("no user namespaces: {}", up.stderr));
        }
        let id = Program::start(&mut as_nobody(&runtime, "exec --host a -- id -u")).succeed(LIMIT);
        assert_eq!(id.stdout.trim_end(), NOBODY.to_string(), "the user keeps their id");
        let ping = Program::start(&mut as_nobody(&runtime, "exec --host a -- ping -n -c 2 b"));
        let ping = ping.succeed(LIMIT);
        assert!(round_trips(&ping.stdout).0 >= 1.0, "{ping}");
        let exec = format!("exec --host a -- {} exec --host b -- uname -n", longhaul().display());
        let there = Program::start(&mut as_nobody(&runtime, &exec)).succeed(LIMIT);
        assert_eq!(there.stdout.trim_end(), "b");
    }
}

mod end {
    use super::*;

    fn holder(lab: &TestLab) -> PathBuf {
        let holder = lab.status()["network"]["holder"].as_u64().expect("a process id");
        PathBuf::from(format!("/proc/{holder}/ns/net"))
    }

    /// What this machine shows of labs: mounts and interfaces.
    fn traces() -> String {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mounts: Vec<&str> =
            mounts.lines().filter(|line| line.contains("longhaul-check")).collect();
        let interfaces = fs::read_to_string("/proc/net/dev").expect("interfaces");
        let interfaces: Vec<&str> =
            interfaces.lines().filter(|line| line.trim_start().starts_with("lh0:")).collect();
        mounts.join("\n") + &interfaces.join("\n")
    }

    fn wait_until_gone(namespace: &Path) {
        let deadline = Instant::now() + LIMIT;
        while namespace.exists() {
            assert!(Instant::now() < deadline, "{} remains", namespace.display());
            sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn nothing_remains_of_a_lab_that_was_taken_down() {
        let Some(lab) = lab("") else { return };
        let holder = holder(&lab);
        assert!(holder.exists());
        assert_eq!(traces(), "", "while it is up");
        lab.down();
        wait_until_gone(&holder);
        assert_eq!(traces(), "");
        assert_eq!(lab.runtime().leftovers(), Vec::<PathBuf>::new());
    }

    #[test]
    fn nothing_remains_of_a_lab_whose_daemon_was_killed() {
        let Some(lab) = lab("") else { return };
        let holder = holder(&lab);
        let mut program = lab.exec("a", "sleep 1000");
        let interfaces = |program: &Program| {
            fs::read_to_string(format!("/proc/{}/net/dev", program.id())).unwrap_or_default()
        };
        let deadline = Instant::now() + LIMIT;
        while !interfaces(&program).contains("lh0:") {
            assert!(Instant::now() < deadline && program.is_running(), "it has no network");
            sleep(Duration::from_millis(10));
        }
        lab.kill();
        wait_until_gone(&holder);
        assert_eq!(traces(), "");
        let deadline = Instant::now() + LIMIT;
        while interfaces(&program).contains("lh0:") {
            assert!(Instant::now() < deadline, "the interface outlives its lab");
            sleep(Duration::from_millis(10));
        }
        assert!(program.is_running(), "its program lost only its network");
        // The name is free, and the new lab's hosts have a network.
        lab.up_again("--network kernel");
        assert_eq!(lab.status()["network"]["kind"], "kernel");
    }

    #[test]
    fn a_host_whose_holder_was_killed_is_refused_with_a_cure() {
        let Some(lab) = lab("") else { return };
        let network = lab.status()["network"]["holder"].as_u64().expect("a process id");
        Program::start(Command::new("kill").args(["-9", &network.to_string()])).succeed(LIMIT);
        wait_until_gone(Path::new(&format!("/proc/{network}/ns/net")));
        let refused = lab.exec("a", "true").finish(LIMIT);
        assert!(!refused.status.success(), "{refused}");
        assert!(refused.stderr.contains("cannot enter the network of host a"), "{refused}");
        assert!(refused.stderr.contains("restart the lab"), "{refused}");
    }
}

mod none {
    use super::*;

    fn status(runtime: &RuntimeDir, options: &str) -> String {
        Program::start(&mut runtime.longhaul(&format!("lab status {options}")))
            .succeed(LIMIT)
            .stdout
    }

    #[test]
    fn what_is_missing_is_said_once_and_in_the_status() {
        require("unshare", "util-linux");
        let _turn = Turn::take();
        let runtime = RuntimeDir::new();
        // A user namespace that may have no network namespaces.
        let script = "echo 0 >/proc/sys/user/max_net_namespaces && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["-U", "-r", "sh", "-c", script, "sh"])
            .arg(longhaul())
            .args(["lab", "up"])
            .env("XDG_RUNTIME_DIR", runtime.path());
        let up = Program::start(&mut command).finish(LIMIT);
        if up.stderr.starts_with("unshare:") || up.stderr.starts_with("sh:") {
            return skip(format!("no user namespaces: {}", up.stderr));
        }
        let (text, json) = (status(&runtime, ""), status(&runtime, "--json"));
        Program::start(&mut runtime.longhaul("lab down")).succeed(LIMIT);
        assert!(up.status.success(), "{up}");
        assert_eq!(up.stderr.lines().count(), 1, "{up}");
        for said in [&up.stderr, &text] {
            assert!(said.contains("may not create namespaces"), "{said}");
        }
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["network"]["kind"], "missing");
    }

    #[test]
    fn a_lab_without_it_says_nothing() {
        let lab = TestLab::up("--network none");
        assert_eq!(lab.status()["network"]["kind"], "none");
        let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let there = lab.exec("a", "uname -n").succeed(LIMIT);
        assert_eq!(there.stdout.trim_end(), here.trim_end());
    }
}

mod back_to_back {
    use super::*;

    #[test]
    fn two_hosts_share_memory_and_no_lab_stands_between() {
        require("ib_write_bw", "perftest");
        let lab = TestLab::up("--back-to-back");
        for _ in 0..2 {
            let port = free_tcp_port();
            let line = format!("ib_write_bw -d longhaul0 -F -p {port} -s 65536 -n 200 -u 18");
            lab.pair(&line, &format!("{line} 127.0.0.1"), Ready::Tcp(port), LIMIT);
        }
        let status = lab.status();
        assert_eq!(status["hosts"].as_array().map(Vec::len), Some(0), "{status}");
    }

    #[test]
    fn a_host_has_one_process_on_its_device_at_a_time() {
        require("ibv_asyncwatch", "ibverbs-utils");
        let lab = TestLab::up("--back-to-back");
        // Prints a line once it has the device.
        let script = "ibv_asyncwatch -d longhaul0 | { read -r line; ibv_devinfo; kill -9 0; }";
        let mut command = lab.command("a", "setsid sh -c");
        let done = Program::start(command.arg(script)).finish(LIMIT);
        let told = "host a already has 1 of at most 1 processes on its device";
        assert!(done.stderr.contains(told), "{done}");
        lab.exec("a", "ibv_devinfo").succeed(LIMIT);
    }

    #[test]
    fn what_needs_a_fibre_is_refused() {
        let runtime = RuntimeDir::new();
        for options in
            ["--distance 1km", "--hosts 3", "--accelerate", "--network kernel", "--loss 0.1"]
        {
            let mut command = runtime.longhaul(&format!("lab up --back-to-back {options}"));
            let refused = Program::start(&mut command).finish(LIMIT);
            assert_eq!(refused.status.code(), Some(2), "{refused}");
            let option = options.split(' ').next().unwrap();
            assert!(refused.stderr.contains(option), "{refused}");
        }
    }
}
