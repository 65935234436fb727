//! Tests of devices on Ethernet segments in a network namespace: TAP devices on a bridge, and two
//! ends of a veth pair. Without root they say so and pass.

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_port::LinkState;
use longhaul_rdma::{
    Access, Attach, CompletionQueue, ConnectionSink, Device, Endpoint, EventQueue, Happening,
    MemoryRegion, PathSettings, ProtectionDomain, QpKind, QueuePair, QueuePairSettings, RdmaError,
    SendOp, Status, attach,
};
use longhaul_rnic::{AddressVector, Counter};
use longhaul_units::{Psn, Qpn};

const LIMIT: Duration = Duration::from_secs(120);

/// Runs `test` in a thread with its own network namespace.
fn in_namespace(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(longhaul_namespace::test_name());
        let tested = thread.spawn_scoped(scope, || {
            // SAFETY: affects only this thread, which ends with the test.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let error = std::io::Error::last_os_error();
                let why = format!("no network namespace of its own ({error}); run as root");
                return longhaul_namespace::skip(why);
            }
            test();
        });
        if let Err(panic) = tested.expect("a thread").join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn attach(variables: &[(&'static str, &str)]) -> Attach {
    let known = [variables, &[(attach::ENV_PATH_MTU, "1024")]].concat();
    Attach::from_lookup(|name| {
        known.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
    .expect("a valid environment")
}

fn tap(name: &str, address: &str) -> Attach {
    let prefix_len = if address.contains(':') { "64" } else { "24" };
    attach(&[
        (attach::ENV_TAP, name),
        (attach::ENV_IP, address),
        (attach::ENV_PREFIX_LEN, prefix_len),
    ])
}

/// The kernel's MAC address of an interface.
fn mac_of(interface: &str) -> String {
    let shown = ip(&format!("-o link show dev {interface}"));
    shown
        .split_whitespace()
        .skip_while(|word| *word != "link/ether")
        .nth(1)
        .expect("a MAC address")
        .to_owned()
}

fn interface(name: &str, address: &str, prefix_len: Option<&'static str>) -> Attach {
    let mac = mac_of(name);
    let mut variables =
        vec![(attach::ENV_INTERFACE, name), (attach::ENV_IP, address), (attach::ENV_MAC, &mac)];
    variables.extend(prefix_len.map(|len| (attach::ENV_PREFIX_LEN, len)));
    attach(&variables)
}

struct Host {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Host {
    fn open(attach: Attach) -> Host {
        let device = Device::open(attach).unwrap();
        device.engine().start().unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(64).unwrap();
        Host { device, pd, cq }
    }

    fn queue_pair(&self) -> QueuePair {
        let qp = self
            .device
            .create_qp(&self.pd, &self.cq, &self.cq, &QueuePairSettings::default())
            .unwrap();
        qp.initialize(&path()).unwrap();
        qp
    }

    fn region(&self, len: usize) -> MemoryRegion {
        self.pd.register(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap()
    }

    /// The error of a call that needs the address of a host that does not exist.
    fn call_nobody(&self, nobody: &str) -> RdmaError {
        let peer = Endpoint { ip: nobody.parse().unwrap(), qpn: Qpn::new(20), psn: Psn::new(0) };
        self.queue_pair().connect(Psn::new(0), &peer, &path()).unwrap_err()
    }
}

fn path() -> PathSettings {
    PathSettings { mtu: longhaul_rdma::Mtu::B1024, timeout: 18, ..PathSettings::default() }
}

fn transfer(a: &Host, b: &Host) {
    let (qa, qb) = (a.queue_pair(), b.queue_pair());
    let (pa, pb) = (Psn::new(1), Psn::new(2));
    qa.connect(pa, &qb.endpoint(pb), &path()).unwrap();
    qb.connect(pb, &qa.endpoint(pa), &path()).unwrap();
    let (source, target) = (a.region(20_000), b.region(20_000));
    let data: Vec<u8> = (0..20_000_u32).map(|n| (n * 7) as u8).collect();
    source.write(0, &data);
    let op =
        SendOp::Write { remote_address: target.address(0), rkey: target.rkey(), immediate: None };
    for round in 0..10 {
        qa.post_send(round, op, &[source.piece(0, 20_000)]).unwrap();
        assert_eq!(a.cq.next(LIMIT).unwrap().status, Status::Success);
    }
    assert!(target.to_vec(0, 20_000) == data);
}

/// Waits until the kernel shows `wanted` for a neighbour.
fn kernel_knows(neighbour: &str, wanted: &str) {
    let begun = Instant::now();
    loop {
        let shown = ip(&format!("neigh show {neighbour}"));
        if shown.contains(wanted) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{wanted} is not in: {shown}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Two TAP devices, t0 and t1, on a bridge where the kernel is a third host.
fn bridge(address: &str) {
    ip("link set lo up");
    ip("link add br0 type bridge");
    for name in ["t0", "t1"] {
        ip(&format!("tuntap add {name} mode tap"));
        ip(&format!("link set {name} master br0"));
    }
    ip("link set br0 up");
    ip(&format!("address add {address} dev br0"));
}

mod taps {
    use super::*;

    #[test]
    fn on_a_bridge_reach_each_other_and_the_kernel() {
        in_namespace(|| {
            bridge("192.168.177.254/24");
            let a = Host::open(tap("t0", "192.168.177.1"));
            let b = Host::open(tap("t1", "192.168.177.2"));
            transfer(&a, &b);
            let ours = "lladdr 02:00:c0:a8:b1:01";
            let kernel = std::net::UdpSocket::bind("192.168.177.254:0").unwrap();
            kernel.send_to(b"x", "192.168.177.1:9").unwrap();
            kernel_knows("192.168.177.1", ours);
            a.device.engine().resolve(IpAddr::from([192, 168, 177, 254])).unwrap();
        });
    }

    #[test]
    fn reach_each_other_by_ipv6() {
        in_namespace(|| {
            bridge("fd00:177::fe/64");
            let a = Host::open(tap("t0", "fd00:177::1"));
            let b = Host::open(tap("t1", "fd00:177::2"));
            transfer(&a, &b);
        });
    }

    #[test]
    fn nobody_is_a_time_out() {
        in_namespace(|| {
            bridge("192.168.177.254/24");
            let a = Host::open(tap("t0", "192.168.177.1"));
            let begun = Instant::now();
            let refused = a.call_nobody("192.168.177.77");
            assert_eq!(refused.errno(), libc::ETIMEDOUT, "{refused}");
            assert!(begun.elapsed() >= Duration::from_secs(2), "three tries take their time");
            let elsewhere = a.call_nobody("10.1.2.3");
            assert_eq!(elsewhere.errno(), libc::ENETUNREACH, "{elsewhere}");
            let pd = a.device.engine().with_quietly(|rnic| rnic.alloc_pd()).unwrap().unwrap();
            let destination_ip = IpAddr::from([192, 168, 177, 78]);
            let address =
                AddressVector { destination_ip, hop_limit: 64, traffic_class: 0, flow_label: 0 };
            let refused = a.device.engine().create_ah(pd, &address).unwrap_err();
            assert_eq!(refused.errno(), libc::ETIMEDOUT, "{refused}");
        });
    }

    #[test]
    fn who_does_not_wait_is_told_later() {
        in_namespace(|| {
            bridge("192.168.177.254/24");
            let a = Host::open(tap("t0", "192.168.177.1"));
            let _b = Host::open(tap("t1", "192.168.177.2"));
            // A new bridge does not forward at first.
            a.device.engine().resolve(IpAddr::from([192, 168, 177, 2])).unwrap();
            let queue = Arc::new(EventQueue::new().unwrap());
            let ask = |last: u8, limit: Option<Duration>, cookie: u64| {
                let sink = ConnectionSink { queue: Arc::clone(&queue), cookie };
                let ip = IpAddr::from([192, 168, 177, last]);
                a.device.engine().resolve_for(ip, limit, sink, 7).unwrap();
            };
            let told = || {
                let event = queue.pop_within(LIMIT).unwrap();
                let Happening::Local { code: 7, status, value: 0 } = event.what else {
                    panic!("{event:?}")
                };
                (event.cookie, status)
            };
            ask(77, None, 1);
            ask(78, Some(Duration::from_millis(300)), 2);
            ask(79, Some(Duration::from_secs(2)), 3);
            a.device.engine().forget_resolutions(3).unwrap();
            ask(254, None, 4);
            let mut first = [told(), told()];
            first.sort_unstable();
            // After the time that the caller gave, and from the kernel, in either order. A call
            // that waits would be told of the first one before.
            assert_eq!(first, [(2, -libc::ETIMEDOUT), (4, 0)]);
            assert_eq!(told(), (1, -libc::ETIMEDOUT), "after three tries");
            assert!(queue.is_empty(), "what was forgotten is not told");
        });
    }

    #[test]
    fn one_device_is_one_programs() {
        in_namespace(|| {
            bridge("192.168.177.254/24");
            let first = Host::open(tap("t0", "192.168.177.1"));
            let second = Host::open(tap("t0", "192.168.177.2"));
            assert_eq!(first.device.engine().link(), LinkState::Up);
            assert_eq!(second.device.engine().link(), LinkState::Down);
        });
    }
}

mod interfaces {
    use super::*;

    /// Both ends of a cable; the kernel has an address at the first one.
    fn cable() {
        ip("link set lo up");
        ip("link add v0 type veth peer name v1");
        ip("link set v0 up");
        ip("link set v1 up");
        ip("address add 10.9.1.1/24 dev v0");
        ip("address add fd00:9::1/64 dev v0 nodad");
    }

    #[test]
    fn shared_with_the_kernel_know_its_neighbours() {
        in_namespace(|| {
            cable();
            let far = Host::open(interface("v1", "10.9.1.2", Some("24")));
            let shared = Host::open(interface("v0", "10.9.1.1", None));
            transfer(&shared, &far);
            transfer(&far, &shared);
            kernel_knows("10.9.1.2", &mac_of("v1"));
            let drops = far.device.engine().with_quietly(|rnic| rnic.counters().drops()).unwrap();
            let received =
                far.device.engine().with_quietly(|rnic| rnic.counters().get(Counter::RxFrames));
            assert!(received.unwrap() > 100);
            // ICMP errors would cause many more; the kernel itself multicasts a little.
            assert!(drops < 50, "{drops} frames that were none of the device's");
        });
    }

    #[test]
    fn have_the_kernel_report_the_groups_of_an_address_of_their_own() {
        in_namespace(|| {
            cable();
            let reported = |group: &str| ip("maddress show dev v1").contains(group);
            for (address, prefix_len, group) in
                [("10.9.1.2", "24", "239.9.1.7"), ("fd00:9::2", "64", "ff05::917")]
            {
                let host = Host::open(interface("v1", address, Some(prefix_len)));
                let settings =
                    QueuePairSettings { kind: QpKind::Ud, ..QueuePairSettings::default() };
                let members = [0, 1].map(|_| {
                    let member =
                        host.device.create_qp(&host.pd, &host.cq, &host.cq, &settings).unwrap();
                    host.device
                        .engine()
                        .attach_multicast(member.qpn(), group.parse().unwrap())
                        .unwrap();
                    member
                });
                let leave = |member: &QueuePair| {
                    host.device
                        .engine()
                        .detach_multicast(member.qpn(), group.parse().unwrap())
                        .unwrap();
                };
                assert!(reported(group), "{}", ip("maddress show dev v1"));
                leave(&members[0]);
                assert!(reported(group), "the other one is still there");
                leave(&members[1]);
                // A program that another thread starts at that moment holds the socket until it has
                // called exec.
                let begun = Instant::now();
                while reported(group) {
                    assert!(begun.elapsed() < LIMIT, "{group} is still reported");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
    }

    #[test]
    fn shared_with_the_kernel_by_ipv6() {
        in_namespace(|| {
            cable();
            let far = Host::open(interface("v1", "fd00:9::2", Some("64")));
            let shared = Host::open(interface("v0", "fd00:9::1", None));
            transfer(&shared, &far);
        });
    }

    #[test]
    fn shared_with_the_kernel_find_nobody_where_it_finds_nobody() {
        in_namespace(|| {
            cable();
            let shared = Host::open(interface("v0", "10.9.1.1", None));
            let refused = shared.call_nobody("10.9.1.77");
            assert_eq!(refused.errno(), libc::ETIMEDOUT, "{refused}");
            let shared = Host::open(interface("v0", "fd00:9::1", None));
            let elsewhere = shared.call_nobody("2001:db8::1");
            assert_eq!(elsewhere.errno(), libc::ENETUNREACH, "{elsewhere}");
        });
    }

    #[test]
    fn have_each_address_once() {
        in_namespace(|| {
            cable();
            let first = Host::open(interface("v1", "10.9.1.2", Some("24")));
            let other = Host::open(interface("v1", "10.9.1.3", Some("24")));
            let again = Host::open(interface("v1", "10.9.1.2", Some("24")));
            let shared = Host::open(interface("v0", "10.9.1.1", None));
            let shared_again = Host::open(interface("v0", "10.9.1.1", None));
            let link = |host: &Host| host.device.engine().link();
            assert_eq!([&first, &other, &shared].map(link), [LinkState::Up; 3]);
            assert_eq!([&again, &shared_again].map(link), [LinkState::Down; 2]);
            transfer(&first, &shared);
            transfer(&shared, &other);
        });
    }
}
