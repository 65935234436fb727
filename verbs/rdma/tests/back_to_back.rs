//! Tests of two devices of one process, joined back to back by memif or by UDP.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use longhaul_rdma::{
    Access, AsyncEvent, Attach, CompletionOp, CompletionQueue, Device, MemoryRegion, PathSettings,
    ProtectionDomain, QueuePair, QueuePairSettings, RdmaError, Role, SendOp, Status, attach,
};
use longhaul_rnic::QpEvent;
use longhaul_units::{Psn, RKey, Rng, SplitMix64};

const LIMIT: Duration = Duration::from_secs(120);
const WRITE_AND_READ: Access =
    Access::LOCAL_WRITE.and(Access::REMOTE_WRITE).and(Access::REMOTE_READ);

fn attach_as(role: Role, socket: &Path, last: u8) -> Attach {
    Attach::from_lookup(|name| match name {
        attach::ENV_SOCKET => Some(socket.display().to_string()),
        attach::ENV_IP => Some(Ipv4Addr::new(10, 77, 0, last).to_string()),
        attach::ENV_ROLE => Some(if role == Role::Master { "master" } else { "slave" }.to_owned()),
        _ => None,
    })
    .expect("a valid environment")
}

struct Host {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Host {
    fn open(attach: Attach) -> Host {
        let device = Device::open(attach).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(4096).unwrap();
        Host { device, pd, cq }
    }

    fn queue_pair(&self, path: &PathSettings) -> QueuePair {
        let settings = QueuePairSettings::default();
        let qp = self.device.create_qp(&self.pd, &self.cq, &self.cq, &settings).unwrap();
        qp.initialize(path).unwrap();
        qp
    }

    fn region(&self, len: usize) -> MemoryRegion {
        self.pd.register(len, WRITE_AND_READ).unwrap()
    }
}

fn socket() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("longhaul-rdma-{}-{count}.sock", std::process::id()))
}

fn hosts() -> (Host, Host) {
    let socket = socket();
    (
        Host::open(attach_as(Role::Master, &socket, 2)),
        Host::open(attach_as(Role::Slave, &socket, 1)),
    )
}

/// Two hosts that reach each other through sockets of this machine. No other test may use `port`.
fn hosts_by_udp(addresses: [&'static str; 2], port: u16) -> (Host, Host) {
    let attach = |address: &'static str| {
        Attach::from_lookup(|name| match name {
            attach::ENV_UDP_PORT => Some(port.to_string()),
            attach::ENV_IP => Some(address.to_owned()),
            _ => None,
        })
    };
    let [a, b] = addresses.map(|address| Host::open(attach(address).expect("a valid environment")));
    (a, b)
}

/// Two connected queue pairs, without the connection manager.
fn connected(a: &Host, b: &Host, path: &PathSettings) -> (QueuePair, QueuePair) {
    let (qa, qb) = (a.queue_pair(path), b.queue_pair(path));
    let (pa, pb) = (Psn::new(0x00ff_fff0), Psn::new(7));
    qa.connect(pa, &qb.endpoint(pb), path).unwrap();
    qb.connect(pb, &qa.endpoint(pa), path).unwrap();
    (qa, qb)
}

fn pattern(rng: &mut SplitMix64, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

mod bytes {
    use super::*;

    #[test]
    fn arrive_as_posted_for_every_operation_and_size() {
        let (a, b) = hosts();
        every_operation(&a, &b);
    }

    #[test]
    fn arrive_by_udp_too() {
        let (a, b) = hosts_by_udp(["127.0.0.2", "127.0.0.3"], 14_791);
        every_operation(&a, &b);
    }

    fn every_operation(a: &Host, b: &Host) {
        let path = PathSettings::default();
        let (qa, qb) = connected(a, b, &path);
        let size = 3 << 20;
        let (ra, rb) = (a.region(size), b.region(size));
        let mut rng = SplitMix64::new(1);
        for round in 0..60_u64 {
            let len = match round % 4 {
                0 => 1 + (rng.next_u64() % 64) as usize,
                1 => 1 + (rng.next_u64() % 9000) as usize,
                2 => 4096,
                _ => 1 + (rng.next_u64() % (size as u64 / 2)) as usize,
            };
            let (from, to) = ((rng.next_u64() % 999) as usize, (rng.next_u64() % 999) as usize);
            let data = pattern(&mut rng, len);
            let (remote_address, rkey) = (rb.address(to), rb.rkey());
            let pieces = [ra.piece(from, len as u32)];
            match round % 3 {
                0 => {
                    ra.write(from, &data);
                    qa.post_send(
                        round,
                        SendOp::Write { remote_address, rkey, immediate: None },
                        &pieces,
                    )
                    .unwrap();
                    assert_eq!(a.cq.next(LIMIT).unwrap().status, Status::Success, "WRITE of {len}");
                    assert!(rb.to_vec(to, len) == data, "WRITE of {len} bytes");
                }
                1 => {
                    ra.write(from, &data);
                    qb.post_recv(round, &[rb.piece(to, len as u32)]).unwrap();
                    let op = SendOp::Send { immediate: Some([1, 2, 3, 4]), invalidate: None };
                    qa.post_send(round, op, &pieces).unwrap();
                    let received = b.cq.next(LIMIT).unwrap();
                    assert_eq!((received.op, received.byte_len), (CompletionOp::Recv, len as u32));
                    assert_eq!((received.wr_id, received.immediate), (round, Some([1, 2, 3, 4])));
                    assert_eq!(a.cq.next(LIMIT).unwrap().wr_id, round);
                    assert!(rb.to_vec(to, len) == data, "SEND of {len} bytes");
                }
                _ => {
                    rb.write(to, &data);
                    qa.post_send(round, SendOp::Read { remote_address, rkey }, &pieces).unwrap();
                    assert_eq!(a.cq.next(LIMIT).unwrap().status, Status::Success, "READ of {len}");
                    assert!(ra.to_vec(from, len) == data, "READ of {len} bytes");
                }
            }
        }
    }

    #[test]
    fn inline_data_is_copied_before_the_call_returns() {
        let (a, b) = hosts();
        let (qa, _qb) = connected(&a, &b, &PathSettings::default());
        let target = b.region(64);
        let mut data = *b"before the call returns";
        let op = SendOp::Write {
            remote_address: target.address(0),
            rkey: target.rkey(),
            immediate: None,
        };
        qa.post_inline(1, op, &data).unwrap();
        data.fill(0);
        assert_eq!(a.cq.next(LIMIT).unwrap().status, Status::Success);
        assert_eq!(target.to_vec(0, data.len()), b"before the call returns");
    }
}

mod failures {
    use super::*;

    #[test]
    fn a_wrong_rkey_ends_the_queue_pair_with_a_remote_access_error() {
        let (a, b) = hosts();
        let (qa, qb) = connected(&a, &b, &PathSettings::default());
        let (source, target) = (a.region(64), b.region(64));
        let op = SendOp::Write {
            remote_address: target.address(0),
            rkey: RKey(target.rkey().0 ^ 0x5500),
            immediate: None,
        };
        qa.post_send(1, op, &[source.piece(0, 64)]).unwrap();
        qa.post_send(2, op, &[source.piece(0, 64)]).unwrap();
        let first = a.cq.next(LIMIT).unwrap();
        assert_eq!((first.wr_id, first.status), (1, Status::RemoteAccess));
        let second = a.cq.next(LIMIT).unwrap();
        assert_eq!((second.wr_id, second.status), (2, Status::WrFlush));
        assert!(target.to_vec(0, 64).iter().all(|byte| *byte == 0));
        let info = qb.query().unwrap();
        assert_eq!(info.state, longhaul_rdma::QpState::Error, "the responder's side");
        let told = AsyncEvent::Qp { cookie: qb.qpn().get().into(), kind: QpEvent::AccessError };
        assert_eq!(b.device.asynchronous_event(), Some(told));
    }

    #[test]
    fn without_a_peer_the_retry_budget_runs_out() {
        let alone = Host::open(attach_as(Role::Slave, &socket(), 1));
        let path = PathSettings { timeout: 8, retry_count: 3, ..PathSettings::default() };
        let qp = alone.queue_pair(&path);
        let peer = longhaul_rdma::Endpoint {
            ip: Ipv4Addr::new(10, 77, 0, 2).into(),
            qpn: longhaul_units::Qpn::new(0x11),
            psn: Psn::new(0),
        };
        qp.connect(Psn::new(0), &peer, &path).unwrap();
        let region = alone.region(8);
        let op = SendOp::Send { immediate: None, invalidate: None };
        qp.post_send(1, op, &[region.piece(0, 8)]).unwrap();
        assert_eq!(alone.cq.next(LIMIT).unwrap().status, Status::RetryExceeded);
    }

    #[test]
    fn the_child_of_a_fork_cannot_use_the_parents_device() {
        let (a, _b) = hosts();
        // SAFETY: the child calls the device, which refuses, and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = matches!(a.device.alloc_pd(), Err(RdmaError::Forked));
            // SAFETY: leaves without running anything of the parent's.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: a valid status to write to.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child was not refused");
        assert!(a.device.alloc_pd().is_ok(), "the parent goes on");
    }
}

mod events {
    use super::*;

    #[test]
    fn an_armed_queue_wakes_a_program_that_does_not_poll() {
        let (a, b) = hosts();
        let (qa, qb) = connected(&a, &b, &PathSettings::default());
        let (source, target) = (a.region(32), b.region(32));
        for round in 0..50 {
            qb.post_recv(round, &[target.piece(0, 32)]).unwrap();
            b.cq.arm(false).unwrap();
            qa.post_send(
                round,
                SendOp::Send { immediate: None, invalidate: None },
                &[source.piece(0, 32)],
            )
            .unwrap();
            b.cq.wait_for_event(LIMIT).unwrap();
            assert_eq!(b.cq.next(LIMIT).unwrap().wr_id, round);
            assert_eq!(a.cq.next(LIMIT).unwrap().wr_id, round);
        }
    }

    #[test]
    fn a_passive_side_that_never_calls_serves_its_peer() {
        let (a, b) = hosts();
        let (qa, _qb) = connected(&a, &b, &PathSettings::default());
        let (source, target) = (a.region(1 << 20), b.region(1 << 20));
        let op = SendOp::Write {
            remote_address: target.address(0),
            rkey: target.rkey(),
            immediate: None,
        };
        for round in 0..20 {
            qa.post_send(round, op, &[source.piece(0, 1 << 20)]).unwrap();
            assert_eq!(a.cq.next(LIMIT).unwrap().status, Status::Success);
        }
        assert!(b.device.engine().counters().unwrap().frames_by_thread > 0);
    }
}

mod connections {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::new(10, 77, 0, 2).into(), port)
    }

    #[test]
    fn are_made_used_and_ended_by_both_sides() {
        let (server, client) = hosts();
        let path = PathSettings::default();
        let listener = server.device.listen(7471).unwrap();
        let served = std::thread::spawn(move || {
            let qp = server.queue_pair(&path);
            let region = server.region(64);
            qp.post_recv(9, &[region.piece(0, 64)]).unwrap();
            let connection = listener.accept(&qp, &path, LIMIT).unwrap();
            let received = server.cq.next(LIMIT).unwrap();
            assert_eq!((received.wr_id, received.byte_len), (9, 5));
            connection.wait_for_end(LIMIT).unwrap();
            region.to_vec(0, 5)
        });
        let qp = client.queue_pair(&path);
        let connection = client.device.connect(&qp, address(7471), &path, LIMIT).unwrap();
        let region = client.region(64);
        region.write(0, b"hello");
        qp.post_send(1, SendOp::Send { immediate: None, invalidate: None }, &[region.piece(0, 5)])
            .unwrap();
        assert_eq!(client.cq.next(LIMIT).unwrap().status, Status::Success);
        connection.disconnect(LIMIT).unwrap();
        assert_eq!(served.join().unwrap(), b"hello");
    }

    #[test]
    fn between_hosts_of_different_path_mtu_use_the_smaller_one() {
        for (serving, asking) in [(1024, 4096), (4096, 1024)] {
            let socket = socket();
            let server =
                Host::open(Attach { path_mtu: serving, ..attach_as(Role::Master, &socket, 2) });
            let client =
                Host::open(Attach { path_mtu: asking, ..attach_as(Role::Slave, &socket, 1) });
            let path = PathSettings::default();
            let listener = server.device.listen(7474).unwrap();
            let served = std::thread::spawn(move || {
                let qp = server.queue_pair(&path);
                let region = server.region(9000);
                qp.post_recv(9, &[region.piece(0, 9000)]).unwrap();
                let connection = listener.accept(&qp, &path, LIMIT).unwrap();
                assert_eq!(server.cq.next(LIMIT).unwrap().byte_len, 9000);
                connection.wait_for_end(LIMIT).unwrap();
                region.to_vec(0, 9000)
            });
            let qp = client.queue_pair(&path);
            let connection = client.device.connect(&qp, address(7474), &path, LIMIT).unwrap();
            let data = pattern(&mut SplitMix64::new(3), 9000);
            let region = client.region(9000);
            region.write(0, &data);
            let op = SendOp::Send { immediate: None, invalidate: None };
            qp.post_send(1, op, &[region.piece(0, 9000)]).unwrap();
            assert_eq!(client.cq.next(LIMIT).unwrap().status, Status::Success);
            connection.disconnect(LIMIT).unwrap();
            assert!(served.join().unwrap() == data, "{serving} and {asking}");
        }
    }

    #[test]
    fn to_a_port_without_listener_are_refused() {
        let (server, client) = hosts();
        server.device.engine().start().unwrap();
        let path = PathSettings::default();
        let qp = client.queue_pair(&path);
        let refused = client.device.connect(&qp, address(7472), &path, LIMIT);
        assert!(matches!(refused, Err(RdmaError::Peer("refused the connection"))));
    }

    #[test]
    fn that_meet_a_listener_between_two_lives_are_kept_for_the_second() {
        let (server, client) = hosts();
        let path = PathSettings::default();
        drop(server.device.listen(7473).unwrap());
        let asking = std::thread::spawn(move || {
            let qp = client.queue_pair(&path);
            client.device.connect(&qp, address(7473), &path, LIMIT).map(drop)
        });
        std::thread::sleep(Duration::from_millis(200));
        let listener = server.device.listen(7473).unwrap();
        let qp = server.queue_pair(&path);
        listener.accept(&qp, &path, LIMIT).unwrap();
        asking.join().unwrap().unwrap();
    }
}

mod rate {
    use super::*;
    use longhaul_units::BitRate;

    #[test]
    fn of_the_port_is_never_exceeded() {
        let socket = socket();
        let a = Host::open(attach_as(Role::Master, &socket, 2));
        let rate = BitRate::from_bps(1_000_000_000);
        let b = Host::open(Attach { rate, ..attach_as(Role::Slave, &socket, 1) });
        let (qb, _qa) = connected(&b, &a, &PathSettings::default());
        let (source, target) = (b.region(1 << 20), a.region(1 << 20));
        let op = SendOp::Write {
            remote_address: target.address(0),
            rkey: target.rkey(),
            immediate: None,
        };
        let begun = std::time::Instant::now();
        for round in 0..20 {
            qb.post_send(round, op, &[source.piece(0, 1 << 20)]).unwrap();
        }
        for _ in 0..20 {
            assert_eq!(b.cq.next(LIMIT).unwrap().status, Status::Success);
        }
        let bits = 20.0 * f64::from(1 << 20) * 8.0;
        assert!(begun.elapsed().as_secs_f64() > bits / 1e9, "faster than the port");
    }
}
