//! The units of `packaging/systemd` under systemd, in a guest. Skipped, loudly, if no guest can be
//! booted or this machine has no systemd to boot in it.

use longhaul_checks::guest::{Guest, GuestConfig, Service, skip_loudly};
use longhaul_checks::{Turn, longhaul, longhaul_with_dpdk};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const BPF: u64 = 1 << 39;
/// Exit code of a configuration at fault, after which the units do not restart.
const CONFIGURATION: &str = "2";
/// The first kernel that moves AF_XDP sockets to another process.
const SOCKETS_MOVE: (u32, u32) = (6, 4);
/// Huge pages in the guest, which has less memory than `packaging/sysctl.d` takes.
const HUGE_PAGES: u32 = 48;
/// Two hosts, one at each port of a box.
const NETWORK: &str = "\
set -e
for end in near=lan0=10.7.0.1 far=wan0=10.7.0.2; do
    host=${end%%=*} rest=${end#*=}
    ip netns add $host
    ip link add ${rest%=*} type veth peer name host0 netns $host
    ip link set ${rest%=*} addrgenmode none
    ip -n $host address add ${rest#*=}/24 dev host0
    ip -n $host link set host0 up
done";
const PORTS: &str = "[defaults]\nmemory = '64M'\n[[pair]]\nlan = 'lan0'\nwan = 'wan0'\n";

/// A public key of another box.
const PEER: &str = "CQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// A file of packaging/.
fn packaged(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(path);
    fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn units() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let entries = fs::read_dir(folder).expect("units").map(|entry| entry.expect("an entry"));
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn boot() -> Option<Guest> {
    let what = "the units under systemd";
    let config = GuestConfig::new("services").modules(&["veth", "vfio"]);
    let config = config.programs(&[("ip", "iproute2")]);
    let mut config = config.systemd().inspect_err(|reason| skip_loudly(what, reason)).ok()?;
    config.memory_mib = 1024;
    config.programs.push(PathBuf::from("/lib/x86_64-linux-gnu/libgcc_s.so.1"));
    config.moved.push(("/usr/bin/longhaul".to_owned(), longhaul_with_dpdk().unwrap_or(longhaul())));
    let mut file = |path: String, content: String| config.files.push((path, content.into()));
    for unit in units() {
        file(format!("/etc/systemd/system/{unit}"), packaged(&format!("systemd/{unit}")));
    }
    file("/etc/sysusers.d/longhaul.conf".into(), packaged("sysusers.d/longhaul.conf"));
    let pages = packaged("sysctl.d/longhaul-dpdk.conf").replace("1024", &HUGE_PAGES.to_string());
    file("/etc/sysctl.d/longhaul-dpdk.conf".into(), pages);
    let guest = Guest::boot(&config).inspect_err(|reason| skip_loudly(what, reason)).ok()?;
    let running = "until [ -S /run/systemd/private ]; do sleep 0.1; done
                   systemctl is-system-running --wait";
    let state = guest.run(running, LIMIT);
    let failed = || guest.run("systemctl --failed; journalctl -p warning -o cat", LIMIT);
    assert_eq!(state.stdout, "running\n", "{}", failed());
    guest.succeed(NETWORK, LIMIT);
    Some(guest)
}

/// Gives the box `name` of `command` a configuration.
fn configure(guest: &Guest, command: &str, name: &str, text: &str) {
    let file = format!("/etc/longhaul/{command}-{name}.toml");
    guest.succeed(&format!("mkdir -p /etc/longhaul; cat >{file} <<'EOF'\n{text}\nEOF"), LIMIT);
}

/// A line of `/proc/PID/status`.
fn status(guest: &Guest, pid: u32, key: &str) -> String {
    let text = guest.succeed(&format!("cat /proc/{pid}/status"), LIMIT).stdout;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{key}\n{text}")).trim().to_owned()
}

fn capabilities(guest: &Guest, pid: u32, set: &str) -> u64 {
    u64::from_str_radix(&status(guest, pid, set), 16).expect("hexadecimal digits")
}

/// Fails unless the box has dropped what the unit gave it, `bounding`, and its guard all but the
/// right to set interfaces.
fn assert_unprivileged(guest: &Guest, service: Service<'_>, bounding: u64) {
    let main = service.main_pid();
    let pids = service.pids();
    assert!(pids.contains(&main), "{main} of {pids:?}");
    for pid in pids {
        let all = status(guest, pid, "Uid");
        assert!(all.split_whitespace().all(|uid| uid != "0"), "{all}");
        assert_eq!(status(guest, pid, "NoNewPrivs"), "1");
        assert_eq!(status(guest, pid, "Seccomp"), "2");
        assert_eq!(capabilities(guest, pid, "CapBnd"), bounding);
        let kept = if pid == main { 0 } else { NET_ADMIN };
        for set in ["CapEff", "CapPrm"] {
            assert_eq!(capabilities(guest, pid, set), kept, "{set} of {pid}");
        }
    }
}

/// Waits until the hosts reach each other through the box.
fn wait_forwarding(guest: &Guest) {
    let ping = "ip netns exec near ping -c 1 -W 1 10.7.0.2 >/dev/null";
    guest.succeed(&format!("until {ping}; do sleep 0.1; done"), LIMIT);
}

/// Kills the main process, and waits until systemd has started another that forwards.
fn assert_returns(guest: &Guest, service: Service<'_>, whom: &str) {
    let killed = service.main_pid();
    service.order(&format!("kill -s KILL --kill-who={whom}"));
    service.wait("it does not return", |service| {
        let pid = service.main_pid();
        pid != 0 && pid != killed && service.property("ActiveState") == "active"
    });
    wait_forwarding(guest);
}

/// Stops it, and fails if something remains.
fn assert_stops(guest: &Guest, service: Service<'_>) {
    service.order("stop");
    assert_eq!(service.property("ActiveState"), "inactive", "{}", service.journal());
    let left = "pgrep longhaul; grep longhaul /proc/net/unix; tail -n +2 /proc/net/packet; \
                ip -d link show | grep prog/xdp; ls /run/longhaul";
    let left = guest.run(left, LIMIT);
    assert_eq!(left.stdout, "", "{left}\n{}", service.journal());
}

/// Reloads it while a connection passes through it, and fails if that breaks.
fn assert_reloads(guest: &Guest, service: Service<'_>) {
    guest.succeed("rm -f /tmp/go /tmp/done", LIMIT);
    let wait_for = |condition: &str| format!("until {condition}; do sleep 0.1; done");
    let (go, done) = (wait_for("[ -e /tmp/go ]"), wait_for("[ -e /tmp/done ]"));
    // An end whose input ends closes the connection.
    let server = guest.spawn(&format!("{done} | ip netns exec far nc -l -p 5001"), LIMIT);
    let listens = "ip netns exec far grep -qh ':1389 .* 0A' /proc/net/tcp /proc/net/tcp6";
    let client = format!("{{ echo before; {go}; echo after; }} | ip netns exec near nc 10.7.0.2");
    let client = guest.spawn(&format!("{}; {client} 5001", wait_for(listens)), LIMIT);
    while server.output().0 != "before\n" {
        assert!(server.is_running() && client.is_running(), "{}", server.finish_now());
    }
    let pings = guest.spawn("ip netns exec near ping -i 0.1 -c 80 10.7.0.2", LIMIT);
    let before = service.main_pid();
    service.order("reload");
    assert_eq!(service.property("ActiveState"), "active", "{}", service.journal());
    service.wait("it has not changed hands", |service| service.main_pid() != before);
    let gone = format!("while [ -e /proc/{before} ]; do sleep 0.1; done");
    guest.succeed(&gone, LIMIT);
    guest.succeed("touch /tmp/go", LIMIT);
    client.succeed();
    guest.succeed("touch /tmp/done", LIMIT);
    assert_eq!(server.succeed().stdout, "before\nafter\n");
    let pings = pings.succeed();
    assert!(pings.stdout.contains(" 0% packet loss"), "{pings}\n{}", service.journal());
    assert_eq!(service.property("NRestarts"), "0", "{}", service.journal());
    let handed = format!("took over from process {before}, which has ended");
    assert!(service.journal().contains(&handed), "{}", service.journal());
}

/// Reloads it, which must fail because of `why` and leave it as it is.
fn assert_not_reloaded(guest: &Guest, service: Service<'_>, why: &str) {
    let before = service.main_pid();
    service.refuse("reload");
    assert!(service.said().contains(why), "{}", service.journal());
    assert_eq!(service.property("ActiveState"), "active", "{}", service.journal());
    assert_eq!(service.main_pid(), before, "{}", service.journal());
    wait_forwarding(guest);
}

/// Version of the guest's kernel.
fn kernel(guest: &Guest) -> (u32, u32) {
    let release = guest.succeed("uname -r", LIMIT).stdout;
    let mut parts = release.split('.').map(|part| part.parse().expect("a number"));
    (parts.next().expect("major"), parts.next().expect("minor"))
}

/// Starts it, which must fail with one line that contains `why`, and for good.
fn assert_refuses(service: Service<'_>, why: &str) {
    service.refuse("start");
    service.wait("it is tried again", |service| service.property("ActiveState") == "failed");
    assert_eq!(service.property("ExecMainStatus"), CONFIGURATION, "{}", service.journal());
    assert_eq!(service.property("NRestarts"), "0", "{}", service.journal());
    let said = service.said();
    // Beside what ExecStopPost= does, which may fail by the same line.
    let mut lines: Vec<&str> = said.lines().filter(|line| !line.ends_with(" is down")).collect();
    lines.dedup();
    assert!(lines.len() == 1 && lines[0].contains(why), "{said}\n{}", service.journal());
}

#[test]
#[ignore = "minutes: cargo xtask interop services"]
fn units_start_return_change_hands_and_stop() {
    let _turn = Turn::take();
    let Some(guest) = boot() else { return };
    let version = guest.succeed("systemctl --version | head -1", LIMIT).stdout;
    println!("under {}", version.trim());
    over_packet_sockets(&guest);
    over_xdp(&guest);
    an_emulated_fibre(&guest);
    over_dpdk(&guest);
    with_a_key(&guest);
    services_at_fault_stay_down(&guest);
    a_missing_interface_is_waited_for(&guest);
    for unit in units() {
        let instance = unit.replace('@', "@west");
        let scored = guest.run(&format!("systemd-analyze security {instance} | tail -1"), LIMIT);
        println!("{instance}: {}", scored.stdout.trim());
    }
}

fn over_packet_sockets(guest: &Guest) {
    configure(guest, "accelerate", "west", PORTS);
    let service = Service::new(guest, "longhaul-accelerate@west.service");
    service.order("start");
    wait_forwarding(guest);
    assert_unprivileged(guest, service, NET_ADMIN | NET_RAW);
    let user = "runs as longhaul-a-west without privileges";
    assert!(service.said().contains(user), "{}", service.said());
    guest.succeed("longhaul box health accelerate-west", LIMIT);
    assert_reloads(guest, service);
    assert_unprivileged(guest, service, NET_ADMIN | NET_RAW);
    assert_returns(guest, service, "main");
    assert_returns(guest, service, "all");
    assert_unprivileged(guest, service, NET_ADMIN | NET_RAW);
    assert_stops(guest, service);
    println!("over packet sockets: passed");
}

fn over_xdp(guest: &Guest) {
    let ports = PORTS.replace("lan0", "xdp:lan0").replace("wan0", "xdp:wan0");
    configure(guest, "accelerate", "west", &ports);
    let service = Service::new(guest, "longhaul-accelerate-xdp@west.service");
    service.order("start");
    wait_forwarding(guest);
    assert_unprivileged(guest, service, NET_ADMIN | NET_RAW | BPF);
    if kernel(guest) < SOCKETS_MOVE {
        assert_not_reloaded(guest, service, "from Linux 6.4 on");
    } else {
        assert_reloads(guest, service);
    }
    assert_returns(guest, service, "main");
    assert_returns(guest, service, "all");
    assert_stops(guest, service);
    println!("over AF_XDP: passed");
}

fn an_emulated_fibre(guest: &Guest) {
    configure(guest, "emulate", "west", "[[pair]]\na = 'lan0'\nb = 'wan0'\ndistance = '100km'\n");
    assert_serves(guest, Service::new(guest, "longhaul-emulate@west.service"));
    println!("an emulated fibre: passed");
}

/// Over the kernel's interfaces by a driver of DPDK's; without DPDK, the unit refuses for good.
fn over_dpdk(guest: &Guest) {
    let pages = guest.succeed("cat /proc/sys/vm/nr_hugepages", LIMIT).stdout;
    assert_eq!(pages.trim(), HUGE_PAGES.to_string());
    guest.succeed("grep -q '^vfio:' /etc/group", LIMIT);
    let port = |number: u32, name: &str| format!("dpdk:net_af_packet{number},iface={name}");
    let ports = PORTS.replace("lan0", &port(0, "lan0")).replace("wan0", &port(1, "wan0"));
    configure(guest, "accelerate", "west", &format!("{ports}[dpdk]\neal = '--in-memory'\n"));
    let service = Service::new(guest, "longhaul-accelerate-dpdk@west.service");
    if longhaul_with_dpdk().is_none() {
        assert_refuses(service, "this longhaul was built without DPDK");
        return println!("over DPDK: refused, for a program built without");
    }
    assert_serves(guest, service);
    println!("over DPDK: passed");
}

/// A service between interfaces that are up starts, returns, and stops.
fn assert_serves(guest: &Guest, service: Service<'_>) {
    guest.succeed("ip link set lan0 up; ip link set wan0 up", LIMIT);
    service.order("start");
    wait_forwarding(guest);
    assert_unprivileged(guest, service, NET_ADMIN | NET_RAW);
    assert_returns(guest, service, "main");
    assert_stops(guest, service);
}

/// A box with a key in its credentials starts, and changes hands with it.
fn with_a_key(guest: &Guest) {
    let key = "mkdir -p /etc/credstore
               longhaul key new /etc/credstore/longhaul-accelerate-sealed.key";
    guest.succeed(key, LIMIT);
    configure(guest, "accelerate", "sealed", &sealed("sealed"));
    let service = Service::new(guest, "longhaul-accelerate@sealed.service");
    service.order("start");
    assert_unprivileged(guest, service, NET_ADMIN | NET_RAW);
    let before = service.main_pid();
    service.order("reload");
    service.wait("it has not changed hands", |service| service.main_pid() != before);
    assert_stops(guest, service);
    println!("with a key: passed");
}

/// A configuration with a key of the service's credentials.
fn sealed(name: &str) -> String {
    format!(
        "{PORTS}transport = true\npeer = ['east={PEER}']\n\
         key = '/run/longhaul/accelerate-{name}/keys/longhaul-accelerate-{name}.key'\n"
    )
}

fn services_at_fault_stay_down(guest: &Guest) {
    configure(guest, "accelerate", "nokey", &sealed("nokey"));
    let service = Service::new(guest, "longhaul-accelerate@nokey.service");
    assert_refuses(service, "longhaul-accelerate-nokey.key");
    configure(guest, "accelerate", "wrong", &format!("{PORTS}rat = '1G'\n"));
    configure(guest, "emulate", "wrong", "[[pair]]\na = 'lan0'\nb = 'wan0'\ndistanse = '1km'\n");
    for unit in units() {
        let unit = unit.replace('@', "@wrong");
        assert_refuses(Service::new(guest, &unit), "has no key");
    }
    let none = Service::new(guest, "longhaul-accelerate@none.service");
    none.order("start");
    let state = ["ActiveState", "ConditionResult"].map(|property| none.property(property));
    assert_eq!(state, ["inactive", "no"], "{}", none.journal());
    println!("services at fault: passed");
}

fn a_missing_interface_is_waited_for(guest: &Guest) {
    configure(guest, "accelerate", "late", &PORTS.replace("wan0", "late0"));
    let service = Service::new(guest, "longhaul-accelerate@late.service");
    guest.run("systemctl start longhaul-accelerate@late.service", LIMIT);
    service.wait("it is not tried again", |service| service.property("NRestarts") != "0");
    guest.succeed("ip link add late0 type veth peer name late1; ip link set late1 up", LIMIT);
    service.wait("it does not start", |service| service.property("ActiveState") == "active");
    assert_stops(guest, service);
    println!("a missing interface: passed");
}
