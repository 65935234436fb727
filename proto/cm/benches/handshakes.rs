//! Set-up and teardown of one connection beside a number of established ones; the cost must hardly
//! depend on that number.
#![allow(missing_docs, reason = "the benchmark harness's macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use longhaul_cm::{Accept, Config, ConnectRequest, ConnectionManager, Event, ServiceId, Transport};
use longhaul_units::{Duration, Instant, Psn, Qpn};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

const SERVICE: u64 = ServiceId::tcp(18515);

fn ip(side: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1 + side))
}

struct Ends {
    now: Instant,
    cm: [ConnectionManager; 2],
    qpn: u32,
}

impl Ends {
    fn with(established: usize) -> Self {
        let config = |seed| Config { seed, ..Config::default() };
        let mut ends = Ends {
            now: Instant::from_ns(1),
            cm: [ConnectionManager::new(config(1)), ConnectionManager::new(config(2))],
            qpn: 0x100,
        };
        ends.cm[1].listen(SERVICE, 0).expect("the first listener");
        for _ in 0..established {
            ends.set_up();
        }
        ends
    }

    fn carry(&mut self) {
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            let mut mad = None;
            while self.cm[from].poll_mad(self.now, |_, m| mad = Some(*m)) {
                if let Some(mad) = mad.take() {
                    self.cm[to].handle_mad(self.now, ip(from as u8), &mad);
                }
            }
            while let Some(event) = self.cm[to].poll_event() {
                self.answer(to, &event);
            }
        }
    }

    fn answer(&mut self, side: usize, event: &Event) {
        self.qpn = (self.qpn + 1) & 0xff_ffff;
        match *event {
            Event::ConnectRequest { connection, .. } => {
                let accept = Accept {
                    local_qpn: Qpn::new(self.qpn),
                    starting_psn: Psn::new(1),
                    responder_resources: 1,
                    initiator_depth: 1,
                    flow_control: true,
                    rnr_retry_count: 7,
                    srq: false,
                    private_data: &[],
                };
                self.cm[side].accept(self.now, connection, &accept).expect("just asked");
            }
            Event::ConnectResponse { connection, .. } => {
                self.cm[side].ready_to_use(self.now, connection).expect("just answered");
            }
            _ => {}
        }
    }

    fn set_up(&mut self) -> longhaul_cm::ConnectionId {
        self.qpn = (self.qpn + 1) & 0xff_ffff;
        let request = ConnectRequest {
            destination_ip: ip(1),
            source_ip: ip(0),
            service_id: SERVICE,
            transport: Transport::Rc,
            local_qpn: Qpn::new(self.qpn),
            starting_psn: Psn::new(1),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            path_mtu_code: 5,
            local_ack_timeout: 19,
            srq: false,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            private_data: &[],
        };
        let id = self.cm[0].connect(self.now, &request).expect("room");
        self.carry();
        id
    }

    /// Runs one connection from set-up to the end of its time-wait.
    fn life(&mut self) {
        let id = self.set_up();
        self.cm[0].disconnect(self.now, id).expect("established");
        self.carry();
        self.now += Duration::from_ms(3000);
        for cm in &mut self.cm {
            cm.handle_timeout(self.now);
            while let Some(event) = cm.poll_event() {
                black_box(event);
            }
        }
    }
}

fn lives(c: &mut Criterion) {
    for established in [0, 1000, 10_000, 30_000] {
        let mut ends = Ends::with(established);
        c.bench_function(&format!("life_beside_{established}"), |b| b.iter(|| ends.life()));
        assert_eq!(ends.cm[0].connections().count(), established);
    }
}

criterion_group!(benches, lives);
criterion_main!(benches);
