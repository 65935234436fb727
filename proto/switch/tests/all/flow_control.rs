//! Priority-based flow control in virtual time: one module per rule.

use longhaul_cc::wire_bytes;
use longhaul_link::DropReason as OutputDrop;
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_switch::{
    DropReason, PfcConfig, PfcFault, PfcPort, SharedBuffer, Switch, SwitchConfig, SwitchError,
};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wire::{Bth, Head, MacAddr, Opcode, Path, PathTemplate, Pause};
use proptest::prelude::*;
use std::net::Ipv4Addr;

const PORTS: usize = 4;
const PAYLOAD: usize = 1000;
/// Bytes on the wire of a frame of the tests.
const FRAME: u64 = wire_bytes(54 + PAYLOAD + 4);
const XOFF: u64 = 10 * FRAME;
const XON: u64 = 5 * FRAME;
/// DSCPs of RoCE data, of CNPs, and of other traffic.
const ROCE: u8 = 26;
const CNP: u8 = 48;
const PLAIN: u8 = 0;

fn rate() -> BitRate {
    BitRate::from_gbps(10).unwrap()
}

fn gap() -> Duration {
    rate().time_for_bytes(FRAME)
}

fn mac(station: u8) -> MacAddr {
    MacAddr([2, 0, 10, 77, 0, station])
}

fn config() -> SwitchConfig {
    let port = PfcPort { rate: rate(), headroom_bytes: 20 * FRAME };
    let pfc = PfcConfig {
        priority: 3,
        xoff_bytes: XOFF,
        xon_bytes: XON,
        shared: None,
        ets_share: None,
        ports: vec![port; PORTS],
    };
    SwitchConfig { queue_bytes: 8 * FRAME, pfc: Some(pfc), ..SwitchConfig::new(PORTS, rate()) }
}

fn switch(config: SwitchConfig) -> Switch {
    let mut switch = Switch::new(config).unwrap();
    for port in 0..PORTS {
        switch.add_static(mac(port as u8), port).unwrap();
    }
    switch
}

/// Frames that left a switch, with their times.
struct Out {
    now: Instant,
    room: usize,
    frames: Vec<(Instant, Side, Vec<u8>)>,
}

impl Transmit for Out {
    fn room(&mut self, _: Side) -> usize {
        self.room
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.frames.push((self.now, side, frame.head.to_vec()));
    }
}

struct Bench {
    switch: Switch,
    out: Out,
}

impl Bench {
    fn new(config: SwitchConfig) -> Self {
        let out = Out { now: Instant::ZERO, room: 64, frames: Vec::new() };
        Bench { switch: switch(config), out }
    }

    fn send(&mut self, from: u8, to: u8, dscp: u8, number: u32) {
        let template = PathTemplate::new(&Path {
            source_mac: mac(from),
            destination_mac: mac(to),
            vlan: None,
            source_ip: Ipv4Addr::new(10, 77, 0, from).into(),
            destination_ip: Ipv4Addr::new(10, 77, 0, to).into(),
            traffic_class: dscp << 2,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        });
        let bth = Bth::new(Opcode::RC_SEND_MIDDLE, Qpn::new(17), Psn::new(number));
        let mut head = Head::begin(&template, &bth);
        head.finish(&template, PAYLOAD);
        let payload = Payload::Synthetic { len: PAYLOAD };
        let frame = Frame { head: head.bytes(), payload, trailer: Trailer::Sealed { pad_len: 0 } };
        self.switch.handle_frame(self.out.now, from.into(), &frame);
        self.switch.poll_transmit(self.out.now, &mut self.out);
    }

    fn pause(&mut self, side: Side, priority: u8, quanta: u16) {
        let bytes = Pause::of(priority, quanta).write(mac(side as u8));
        self.switch.handle_frame(self.out.now, side, &Frame::opaque(&bytes));
        self.switch.poll_transmit(self.out.now, &mut self.out);
    }

    /// Processes deadlines until `end`.
    fn run_until(&mut self, end: Instant) {
        while let Some(deadline) = self.switch.poll_timeout()
            && deadline.at <= end
        {
            self.out.now = self.out.now.max(deadline.at);
            self.switch.handle_timeout(self.out.now);
            self.switch.poll_transmit(self.out.now, &mut self.out);
        }
        self.out.now = end;
        self.switch.poll_transmit(end, &mut self.out);
    }

    fn run_for(&mut self, time: Duration) {
        self.run_until(self.out.now + time);
    }

    /// Runs until there is no deadline.
    fn drain(&mut self) {
        while let Some(deadline) = self.switch.poll_timeout() {
            self.run_until(deadline.at.max(self.out.now));
        }
    }

    /// Pause frames sent by a port: time and length.
    fn pauses(&self, side: Side) -> Vec<(Instant, u16)> {
        let of_side = self.out.frames.iter().filter(|frame| frame.1 == side);
        of_side.filter_map(|(at, _, head)| Some((*at, Pause::parse(head)?.quanta[3]?))).collect()
    }

    /// Times at which other frames left by a port.
    fn departures(&self, side: Side) -> Vec<Instant> {
        let frames = self.out.frames.iter();
        frames
            .filter(|(_, at, head)| *at == side && !Pause::is_mac_control(head))
            .map(|(at, ..)| *at)
            .collect()
    }
}

mod an_input {
    use super::*;

    #[test]
    fn that_fills_is_paused_at_xoff_and_goes_on_at_xon() {
        let mut bench = Bench::new(config());
        for number in 0..20 {
            bench.send(1, 0, ROCE, number);
        }
        bench.drain();
        let told = bench.pauses(1);
        assert_eq!(told.iter().map(|told| told.1).collect::<Vec<_>>(), [u16::MAX, 0]);
        // At XON fifteen of them have left; the pause frame takes its own transmission time.
        let says = rate().time_for_bytes(wire_bytes(Pause::LEN));
        assert_eq!(told[0].0, Instant::ZERO + says);
        assert_eq!(told[1].0, Instant::ZERO + gap().times(15) + says);
        assert_eq!(bench.departures(0).len(), 20);
        let pause = bench.switch.counters(1).pause;
        assert_eq!((pause.pauses_sent, pause.resumes_sent), (1, 1));
        assert_eq!(pause.held_bytes_max, 20 * FRAME);
    }

    #[test]
    fn that_fills_pauses_nobody_else() {
        let mut bench = Bench::new(config());
        for number in 0..20 {
            bench.send(1, 0, ROCE, number);
        }
        bench.send(2, 0, ROCE, 20);
        bench.drain();
        assert!(!bench.pauses(1).is_empty());
        assert!([0, 2, 3].iter().all(|side| bench.pauses(*side).is_empty()));
    }

    #[test]
    fn is_paused_again_before_the_quanta_run_out() {
        let mut bench = Bench::new(config());
        bench.pause(0, 3, u16::MAX);
        for number in 0..20 {
            bench.send(1, 0, ROCE, number);
        }
        let quanta = Pause::time(u16::MAX, rate());
        for _ in 0..20 {
            bench.run_for(quanta.divided_by(4));
            bench.pause(0, 3, u16::MAX);
        }
        let told = bench.pauses(1);
        assert!(told.len() >= 9, "{told:?}");
        assert!(told.iter().all(|told| told.1 == u16::MAX));
        assert!(told.windows(2).all(|two| two[1].0.since(two[0].0) < quanta), "{told:?}");
    }

    #[test]
    fn whose_headroom_is_used_up_drops_and_counts() {
        let mut bench = Bench::new(config());
        for number in 0..35 {
            bench.send(1, 0, ROCE, number);
        }
        assert_eq!(bench.switch.counters(1).drops.get(DropReason::HeadroomFull), 5);
        bench.drain();
        assert_eq!(bench.departures(0).len(), 30);
    }

    #[test]
    fn of_other_priorities_is_not_paused_and_its_queue_drops_at_the_tail() {
        let mut bench = Bench::new(config());
        for number in 0..20 {
            bench.send(1, 0, PLAIN, number);
        }
        bench.drain();
        assert!(bench.pauses(1).is_empty());
        let output = bench.switch.counters(0).output;
        assert_eq!(output.drops.get(OutputDrop::QueueFull), 11, "one is sent, eight wait");
        assert_eq!(output.delivered_frames, 9);
    }
}

mod an_output {
    use super::*;

    #[test]
    fn that_is_paused_sends_nothing_of_the_priority_until_the_time_is_over() {
        let mut bench = Bench::new(config());
        bench.pause(0, 3, 1000);
        bench.send(1, 0, ROCE, 1);
        bench.drain();
        let over = Instant::ZERO + Pause::time(1000, rate());
        assert_eq!(bench.departures(0), [over + gap()]);
        let pause = bench.switch.counters(0).pause;
        assert_eq!((pause.pauses_received, pause.paused), (1, Pause::time(1000, rate())));
    }

    #[test]
    fn goes_on_when_told_so() {
        let mut bench = Bench::new(config());
        bench.pause(0, 3, u16::MAX);
        bench.send(1, 0, ROCE, 1);
        bench.run_for(Duration::from_us(7));
        assert!(bench.departures(0).is_empty());
        bench.pause(0, 3, 0);
        bench.drain();
        assert_eq!(bench.departures(0), [Instant::ZERO + Duration::from_us(7) + gap()]);
        let pause = bench.switch.counters(0).pause;
        assert_eq!((pause.resumes_received, pause.paused), (1, Duration::from_us(7)));
    }

    #[test]
    fn stays_paused_as_long_as_it_is_told_again() {
        let mut bench = Bench::new(config());
        bench.send(1, 2, ROCE, 0);
        for _ in 0..5 {
            bench.pause(0, 3, 1000);
            bench.send(1, 0, ROCE, 1);
            bench.run_for(Pause::time(600, rate()));
        }
        assert!(bench.departures(0).is_empty());
        assert_eq!(bench.switch.counters(0).pause.paused, Pause::time(600, rate()).times(5));
        assert_eq!(bench.departures(2).len(), 1, "no other output is held up");
    }

    #[test]
    fn that_is_paused_ends_the_frame_that_it_sends() {
        let mut bench = Bench::new(config());
        bench.send(1, 0, ROCE, 1);
        bench.run_for(gap().divided_by(2));
        bench.pause(0, 3, 1000);
        bench.drain();
        assert_eq!(bench.departures(0), [Instant::ZERO + gap()]);
    }

    #[test]
    fn that_is_paused_sends_other_priorities() {
        let mut bench = Bench::new(config());
        bench.pause(0, 3, u16::MAX);
        bench.send(1, 0, ROCE, 1);
        bench.send(1, 0, CNP, 2);
        bench.send(1, 0, PLAIN, 3);
        bench.run_for(gap().times(3));
        assert_eq!(bench.departures(0).len(), 2);
    }

    #[test]
    fn whose_other_priorities_are_paused_sends_all() {
        let mut bench = Bench::new(config());
        bench.pause(0, 6, u16::MAX);
        bench.send(1, 0, ROCE, 1);
        bench.send(1, 0, CNP, 2);
        bench.drain();
        assert_eq!(bench.departures(0).len(), 2);
        assert_eq!(bench.switch.counters(0).pause, Default::default());
    }

    /// The queue is full of data, and the notification waits for at most one frame.
    #[test]
    fn takes_turns_between_the_lossless_priority_and_the_rest() {
        let mut bench = Bench::new(config());
        for number in 0..9 {
            bench.send(1, 0, ROCE, number);
        }
        bench.send(2, 0, CNP, 9);
        bench.drain();
        let dscps: Vec<u8> =
            bench.out.frames.iter().filter(|it| it.1 == 0).map(|it| it.2[15] >> 2).collect();
        assert_eq!(dscps[..3], [ROCE, CNP, ROCE]);
    }

    #[test]
    fn sends_at_its_rate() {
        let mut bench = Bench::new(config());
        for number in 0..30 {
            bench.send(1 + (number % 3) as u8, 0, ROCE, number);
        }
        bench.drain();
        let times: Vec<Instant> = (1..=30).map(|at| Instant::ZERO + gap().times(at)).collect();
        assert_eq!(bench.departures(0), times);
    }

    #[test]
    fn without_room_holds_what_it_has_and_asks_for_no_time() {
        let mut bench = Bench::new(config());
        bench.out.room = 0;
        bench.send(1, 0, ROCE, 1);
        bench.run_for(Duration::from_us(10));
        assert_eq!(bench.switch.poll_timeout(), None);
        bench.out.room = 1;
        bench.drain();
        bench.switch.poll_transmit(bench.out.now, &mut bench.out);
        assert_eq!(bench.departures(0).len(), 1);
    }
}

mod a_shared_buffer {
    use super::*;

    /// Room for 30 frames, of which each input may have as much as is free.
    fn shared(alpha: f64) -> Bench {
        let mut config = config();
        let shared = SharedBuffer { bytes: 30 * FRAME, alpha, hysteresis_bytes: 2 * FRAME };
        config.pfc.as_mut().unwrap().shared = Some(shared);
        Bench::new(config)
    }

    /// Frames that an input takes until it asks for a pause. One of them is already being sent.
    fn taken(bench: &mut Bench, from: u8) -> u32 {
        let asked = |bench: &Bench| bench.switch.counters(from.into()).pause.pauses_sent;
        let before = asked(bench);
        for number in 0..100 {
            bench.send(from, 3, ROCE, number);
            if asked(bench) > before {
                return number + 1;
            }
        }
        panic!("port {from} took 100 frames and was not paused");
    }

    #[test]
    fn is_shared_by_the_free_part_and_alpha() {
        let mut bench = shared(1.0);
        // 15 of 30 are as many as are free; the next is the one too many.
        assert_eq!(taken(&mut bench, 0), 16);
        // 15 are left, of which the second input takes half.
        assert_eq!(taken(&mut bench, 1), 8 + 1);
        assert_eq!(taken(&mut shared(0.5), 0), 10 + 1);
    }

    #[test]
    fn drops_nothing_before_the_headroom_is_full_and_takes_all_again_when_empty() {
        let mut bench = shared(1.0);
        let taken_first = taken(&mut bench, 0);
        (0..19).for_each(|number| bench.send(0, 3, ROCE, number));
        assert_eq!(bench.switch.counters(0).drops.total(), 0);
        bench.send(0, 3, ROCE, 99);
        assert_eq!(bench.switch.counters(0).drops.get(DropReason::HeadroomFull), 1);
        bench.drain();
        let pauses = bench.pauses(0);
        assert_eq!(pauses.last().map(|(_, quanta)| *quanta), Some(0), "told to go on");
        assert_eq!(bench.departures(3).len() as u32, taken_first + 19);
        bench.out.frames.clear();
        assert_eq!(taken(&mut bench, 0), taken_first);
    }
}

mod shares {
    use super::*;

    #[test]
    fn divide_an_output_that_both_classes_fill() {
        let mut config = config();
        config.queue_bytes = 1000 * FRAME;
        let pfc = config.pfc.as_mut().unwrap();
        (pfc.ets_share, pfc.xoff_bytes, pfc.xon_bytes) = (Some(75), 1000 * FRAME, 0);
        let mut bench = Bench::new(config);
        for number in 0..100 {
            bench.send(0, 3, ROCE, number);
            bench.send(1, 3, PLAIN, number);
        }
        bench.run_for(Duration::from_ps(80 * gap().as_ps()));
        let lossless = |frame: &&(Instant, Side, Vec<u8>)| frame.1 == 3 && frame.2[15] >> 2 == ROCE;
        let count = bench.out.frames.iter().filter(lossless).count();
        assert!((59..=61).contains(&count), "{count} of 80");
        // What one class leaves, the other takes.
        bench.drain();
        assert_eq!(bench.departures(3).len(), 200);
    }
}

mod mac_control {
    use super::*;

    #[test]
    fn goes_no_further_than_the_switch() {
        for config in [config(), SwitchConfig { pfc: None, ..config() }] {
            let is_obeyed = config.pfc.is_some();
            let mut bench = Bench::new(config);
            bench.pause(0, 3, 5);
            let mut other = Pause::of(3, 5).write(mac(0));
            other[15] = 0x77;
            bench.switch.handle_frame(Instant::ZERO, 0, &Frame::opaque(&other));
            // LLDP.
            other[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
            bench.switch.handle_frame(Instant::ZERO, 0, &Frame::opaque(&other));
            bench.drain();
            assert!(bench.out.frames.is_empty());
            let dropped = bench.switch.counters(0).drops.get(DropReason::LinkLocal);
            assert_eq!(dropped, if is_obeyed { 2 } else { 3 });
            assert_eq!(bench.switch.addresses(), PORTS, "nothing is learnt of it");
        }
    }
}

mod configuration {
    use super::*;

    #[test]
    fn that_makes_no_sense_is_refused() {
        let refused = |change: fn(&mut PfcConfig)| {
            let mut config = config();
            config.pfc.iter_mut().for_each(change);
            Switch::new(config).map(drop)
        };
        let fault = |fault| Err(SwitchError::Pfc(fault));
        assert_eq!(refused(|pfc| pfc.priority = 8), fault(PfcFault::Priority { priority: 8 }));
        assert_eq!(
            refused(|pfc| pfc.ports.truncate(3)),
            fault(PfcFault::Ports { given: 3, ports: 4 })
        );
        let (xoff_bytes, xon_bytes) = (XOFF, XOFF + 1);
        let thresholds = PfcFault::Thresholds { xoff_bytes, xon_bytes };
        assert_eq!(refused(|pfc| pfc.xon_bytes = XOFF + 1), fault(thresholds));
    }
}

mod any_traffic {
    use super::*;

    #[derive(Clone, Debug)]
    enum Event {
        Frame { from: u8, to: u8, dscp: u8 },
        Pause { side: Side, priority: u8, quanta: u16 },
        Room(usize),
        Wait(u64),
        Bytes(Side, Vec<u8>),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let ports = 0..PORTS as u8;
        let event = prop_oneof![
            6 => (ports.clone(), 0..PORTS as u8 + 1, prop::sample::select(vec![ROCE, CNP, PLAIN]))
                .prop_map(|(from, to, dscp)| Event::Frame { from, to, dscp }),
            1 => (0..PORTS, 2_u8..5, 0_u16..3000)
                .prop_map(|(side, priority, quanta)| Event::Pause { side, priority, quanta }),
            1 => (0_usize..3).prop_map(Event::Room),
            2 => (0_u64..5000).prop_map(Event::Wait),
            1 => (0..PORTS, prop::collection::vec(any::<u8>(), 0..80))
                .prop_map(|(side, mut bytes)| {
                    if bytes.len() > 16 {
                        bytes[..16].copy_from_slice(&Pause::of(3, 1).write(mac(9))[..16]);
                    }
                    Event::Bytes(side, bytes)
                }),
        ];
        prop::collection::vec(event, 1..300)
    }

    proptest! {
        /// Every frame is accounted for, each flow keeps its order, and every paused port is
        /// resumed.
        #[test]
        fn is_conserved_and_keeps_its_order(events in events()) {
            let mut bench = Bench::new(config());
            for (number, event) in (0..).zip(&events) {
                match event {
                    Event::Frame { from, to, dscp } => bench.send(*from, *to, *dscp, number),
                    Event::Pause { side, priority, quanta } => {
                        bench.pause(*side, *priority, *quanta)
                    }
                    Event::Room(room) => bench.out.room = *room,
                    Event::Wait(ns) => bench.run_for(Duration::from_ns(*ns)),
                    Event::Bytes(side, bytes) => {
                        bench.switch.handle_frame(bench.out.now, *side, &Frame::opaque(bytes));
                    }
                }
            }
            bench.out.room = 64;
            bench.switch.poll_transmit(bench.out.now, &mut bench.out);
            bench.drain();
            for port in 0..PORTS {
                let counters = bench.switch.counters(port);
                let output = counters.output;
                prop_assert_eq!(
                    output.entered_frames,
                    output.delivered_frames + output.drops.total()
                );
                prop_assert_eq!((output.in_flight_frames, output.memory_bytes), (0, 0));
                prop_assert_eq!(output.delivered_frames, bench.departures(port).len() as u64);
                prop_assert!(counters.pause.held_bytes_max <= XOFF + 20 * FRAME);
                let told = bench.pauses(port);
                prop_assert!(told.last().is_none_or(|told| told.1 == 0), "{told:?}");
            }
            let mut last = std::collections::HashMap::new();
            let is_data = |head: &[u8]| head.len() == 54 && !Pause::is_mac_control(head);
            for (_, side, head) in bench.out.frames.iter().filter(|(.., head)| is_data(head)) {
                let psn = u32::from_be_bytes([0, head[51], head[52], head[53]]);
                let before = last.insert((*side, head[11], head[15]), psn);
                prop_assert!(before.is_none_or(|before| before < psn));
            }
        }
    }
}
