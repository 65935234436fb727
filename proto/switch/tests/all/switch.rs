//! The switch in virtual time: one module per rule.

use longhaul_cc::{RedConfig, wire_bytes};
use longhaul_link::DropReason as OutputDrop;
use longhaul_node::{Frame, Node, Payload, Side, Trailer, Transmit};
use longhaul_switch::{DropReason, Switch, SwitchConfig, SwitchError};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn};
use longhaul_wire::{Bth, Ecn, Head, MacAddr, Opcode, Path, PathTemplate};
use proptest::prelude::*;
use std::net::Ipv4Addr;

const FRAME_LEN: usize = 1054;
const PORTS: usize = 4;
const BROADCAST: MacAddr = MacAddr([0xff; 6]);

fn rate() -> BitRate {
    BitRate::from_gbps(10).unwrap()
}

fn mac(station: u8) -> MacAddr {
    MacAddr([2, 0, 10, 77, 0, station])
}

/// A switch with station `i` behind port `i`.
fn switch(config: SwitchConfig) -> Switch {
    let ports = config.ports;
    let mut switch = Switch::new(config).unwrap();
    for port in 0..ports {
        switch.add_static(mac(port as u8), port).unwrap();
    }
    switch
}

fn plain() -> SwitchConfig {
    SwitchConfig::new(PORTS, rate())
}

fn send_to(
    switch: &mut Switch,
    now: Instant,
    side: Side,
    [to, from]: [MacAddr; 2],
    number: u32,
    len: usize,
) {
    let mut head = [0; 54];
    head[..6].copy_from_slice(&to.0);
    head[6..12].copy_from_slice(&from.0);
    head[50..].copy_from_slice(&number.to_be_bytes());
    let payload = Payload::Synthetic { len: len - 54 };
    switch.handle_frame(now, side, &Frame { head: &head, payload, trailer: Trailer::None });
}

/// Sends a frame between two stations, from the sender's port.
fn send(switch: &mut Switch, now: Instant, from: u8, to: u8, number: u32) {
    send_to(switch, now, Side::from(from), [mac(to), mac(from)], number, FRAME_LEN);
}

#[derive(Clone, Debug, PartialEq)]
struct Arrival {
    at: Instant,
    side: Side,
    head: Vec<u8>,
}

impl Arrival {
    fn number(&self) -> u32 {
        u32::from_be_bytes(self.head[50..54].try_into().unwrap())
    }
}

struct Out {
    now: Instant,
    room: usize,
    arrivals: Vec<Arrival>,
}

impl Transmit for Out {
    fn room(&mut self, _: Side) -> usize {
        self.room
    }
    fn transmit(&mut self, side: Side, frame: &Frame<'_>) {
        self.arrivals.push(Arrival { at: self.now, side, head: frame.head.to_vec() });
    }
}

/// Processes deadlines until nothing is queued.
fn drain(switch: &mut Switch) -> Vec<Arrival> {
    let mut out = Out { now: Instant::ZERO, room: 64, arrivals: Vec::new() };
    while let Some(deadline) = switch.poll_timeout() {
        out.now = deadline.at;
        switch.handle_timeout(out.now);
        switch.poll_transmit(out.now, &mut out);
    }
    out.arrivals
}

/// Ports on which frames left, with their numbers.
fn sides(arrivals: &[Arrival]) -> Vec<(Side, u32)> {
    arrivals.iter().map(|arrival| (arrival.side, arrival.number())).collect()
}

mod forwarding {
    use super::*;

    #[test]
    fn a_declared_address_gets_its_frames_at_its_port_alone() {
        let mut switch = switch(plain());
        send(&mut switch, Instant::ZERO, 0, 2, 1);
        send(&mut switch, Instant::ZERO, 2, 0, 2);
        assert_eq!(sides(&drain(&mut switch)), [(0, 2), (2, 1)]);
    }

    #[test]
    fn what_is_declared_is_not_taken_over_by_a_sender() {
        let mut switch = switch(plain());
        send_to(&mut switch, Instant::ZERO, 3, [mac(0), mac(2)], 1, FRAME_LEN);
        send(&mut switch, Instant::ZERO, 0, 2, 2);
        assert_eq!(sides(&drain(&mut switch)), [(0, 1), (2, 2)]);
    }

    #[test]
    fn group_addresses_go_everywhere_but_back() {
        let mut switch = switch(plain());
        for (number, group) in [(1, BROADCAST), (2, MacAddr([0x01, 0, 0x5e, 1, 2, 3]))] {
            send_to(&mut switch, Instant::ZERO, 1, [group, mac(1)], number, FRAME_LEN);
        }
        assert_eq!(sides(&drain(&mut switch)), [(0, 1), (2, 1), (3, 1), (0, 2), (2, 2), (3, 2)]);
        assert_eq!(switch.counters(1).flooded_frames, 2);
    }

    #[test]
    fn an_unknown_address_is_asked_for_everywhere_until_it_has_spoken() {
        let mut switch = Switch::new(plain()).unwrap();
        send(&mut switch, Instant::ZERO, 0, 2, 1);
        assert_eq!(sides(&drain(&mut switch)), [(1, 1), (2, 1), (3, 1)]);
        send(&mut switch, Instant::from_ns(5000), 2, 0, 2);
        send(&mut switch, Instant::from_ns(5000), 0, 2, 3);
        assert_eq!(sides(&drain(&mut switch)), [(0, 2), (2, 3)], "both have spoken by now");
    }

    #[test]
    fn a_station_that_moves_is_found_again() {
        let mut switch = Switch::new(plain()).unwrap();
        send_to(&mut switch, Instant::ZERO, 1, [BROADCAST, mac(9)], 1, FRAME_LEN);
        send_to(&mut switch, Instant::ZERO, 3, [BROADCAST, mac(9)], 2, FRAME_LEN);
        drain(&mut switch);
        send_to(&mut switch, Instant::from_ns(9000), 0, [mac(9), mac(0)], 3, FRAME_LEN);
        assert_eq!(sides(&drain(&mut switch)), [(3, 3)]);
    }

    #[test]
    fn a_silent_station_is_forgotten() {
        let age = Duration::from_ms(10);
        let mut switch = Switch::new(SwitchConfig { address_age: age, ..plain() }).unwrap();
        send_to(&mut switch, Instant::ZERO, 1, [BROADCAST, mac(9)], 1, FRAME_LEN);
        drain(&mut switch);
        send_to(&mut switch, Instant::ZERO + age, 0, [mac(9), mac(0)], 2, FRAME_LEN);
        assert_eq!(sides(&drain(&mut switch)), [(1, 2), (2, 2), (3, 2)]);
    }

    #[test]
    fn a_flood_of_senders_costs_bounded_memory_and_passes_by_age() {
        let age = Duration::from_ms(10);
        let config = SwitchConfig { address_age: age, addresses_max: 16, ..plain() };
        let mut switch = Switch::new(config).unwrap();
        for number in 0..1000_u32 {
            let [_, _, c, d] = number.to_be_bytes();
            let from = MacAddr([2, 1, 1, 1, c, d]);
            send_to(&mut switch, Instant::ZERO, 1, [BROADCAST, from], number, FRAME_LEN);
        }
        assert_eq!(switch.addresses(), 16);
        assert_eq!(switch.counters(1).unlearnt_frames, 984);
        drain(&mut switch);
        let later = Instant::ZERO + Duration::from_ms(2000);
        send_to(&mut switch, later, 3, [BROADCAST, mac(9)], 1, FRAME_LEN);
        drain(&mut switch);
        send_to(&mut switch, later + age.divided_by(2), 0, [mac(9), mac(0)], 2, FRAME_LEN);
        assert_eq!(sides(&drain(&mut switch)), [(3, 2)]);
    }

    #[test]
    fn frames_that_no_station_sends_are_dropped_for_their_reason() {
        let mut switch = switch(plain());
        switch.handle_frame(Instant::ZERO, 0, &Frame::opaque(&[0; 13]));
        send_to(&mut switch, Instant::ZERO, 0, [mac(1), BROADCAST], 1, FRAME_LEN);
        send_to(&mut switch, Instant::ZERO, 0, [mac(0), mac(9)], 1, FRAME_LEN);
        for to in [mac(1), BROADCAST] {
            send_to(&mut switch, Instant::ZERO, 0, [to, mac(0)], 1, 20_000);
        }
        let counters = switch.counters(0);
        let dropped: Vec<u64> = counters.drops.iter().map(|(_, count)| count).collect();
        assert_eq!(dropped, [1, 2, 1, 1, 0, 0], "{:?}", DropReason::ALL);
        assert_eq!((counters.received_frames, counters.drops.total()), (5, 5));
        assert!(drain(&mut switch).is_empty());
    }
}

mod outputs {
    use super::*;

    #[test]
    fn many_to_one_leave_at_the_rate_of_one() {
        let mut switch = switch(plain());
        for number in 0..30 {
            send(&mut switch, Instant::ZERO, 1 + (number % 3) as u8, 0, number);
        }
        let gap = rate().time_for_bytes(wire_bytes(FRAME_LEN));
        let arrivals = drain(&mut switch);
        for (at, arrival) in arrivals.iter().enumerate() {
            assert_eq!(arrival.at, Instant::ZERO + gap.times(at as u64 + 1));
            assert_eq!(arrival.number(), at as u32, "first come, first served");
        }
        assert_eq!(arrivals.len(), 30);
    }

    #[test]
    fn an_output_with_a_rate_of_its_own_is_queued_for_at_that() {
        let slow = BitRate::from_bps(rate().as_bps() / 10).unwrap();
        let mut switch = switch(SwitchConfig { port_rates: vec![slow], ..plain() });
        for number in 0..5 {
            send(&mut switch, Instant::ZERO, 2, 0, number);
            send(&mut switch, Instant::ZERO, 2, 1, number);
        }
        let last =
            |arrivals: &[Arrival], side| arrivals.iter().rfind(|it| it.side == side).unwrap().at;
        let arrivals = drain(&mut switch);
        for (side, rate) in [(0, slow), (1, rate())] {
            assert_eq!(
                last(&arrivals, side),
                Instant::ZERO + rate.time_for_bytes(wire_bytes(FRAME_LEN)).times(5)
            );
        }
        assert_eq!(
            switch.counters(0).output.queue_bytes_max,
            switch.counters(1).output.queue_bytes_max
        );
    }

    #[test]
    fn what_does_not_fit_the_queue_is_dropped_at_its_tail() {
        let frames = 10;
        let mut switch =
            switch(SwitchConfig { queue_bytes: frames * wire_bytes(FRAME_LEN), ..plain() });
        for number in 0..25 {
            send(&mut switch, Instant::ZERO, 1, 0, number);
        }
        let numbers: Vec<u32> = drain(&mut switch).iter().map(Arrival::number).collect();
        assert_eq!(numbers, (0..10).collect::<Vec<_>>());
        let output = switch.counters(0).output;
        assert_eq!(output.drops.get(OutputDrop::QueueFull), 15);
        assert_eq!(output.queue_bytes_max, frames * wire_bytes(FRAME_LEN));
    }

    #[test]
    fn a_blocked_output_holds_up_no_other() {
        let mut switch = switch(plain());
        send(&mut switch, Instant::ZERO, 1, 0, 1);
        let later = Instant::from_ns(5000);
        let mut out = Out { now: later, room: 0, arrivals: Vec::new() };
        switch.poll_transmit(later, &mut out);
        assert_eq!(switch.poll_timeout(), None, "room is no deadline");
        send(&mut switch, later, 0, 1, 2);
        out.room = 64;
        switch.poll_transmit(later, &mut out);
        assert_eq!(sides(&out.arrivals), [(0, 1)]);
        assert_eq!(sides(&drain(&mut switch)), [(1, 2)]);
    }

    /// For any length of blocking and any traffic.
    #[test]
    fn memory_is_bounded_by_the_configuration() {
        let config = SwitchConfig { queue_bytes: 100_000, ..plain() };
        let bound = config.memory_bytes_max();
        let mut switch = switch(config);
        let mut out = Out { now: Instant::ZERO, room: 0, arrivals: Vec::new() };
        for number in 0..20_000_u32 {
            let now = Instant::from_ns(u64::from(number) * 1000);
            let len = 60 + (number as usize * 37) % 4000;
            send_to(&mut switch, now, 0, [BROADCAST, mac(0)], number, len);
            switch.poll_transmit(now, &mut out);
        }
        let held: u64 = (0..PORTS).map(|port| switch.counters(port).output.memory_bytes_max).sum();
        assert!(held <= bound, "{held} of {bound} bytes");
        let dropped = switch.counters(1).output.drops;
        assert!(dropped.get(OutputDrop::Memory) > 0, "the bound was reached: {dropped:?}");
    }
}

mod marks {
    use super::*;

    const RED: RedConfig = RedConfig { kmin_bytes: 20_000, kmax_bytes: 60_000, pmax: 0.5 };

    fn roce(traffic_class: u8, number: u32) -> Head {
        let template = PathTemplate::new(&Path {
            source_mac: mac(1),
            destination_mac: mac(0),
            vlan: None,
            source_ip: Ipv4Addr::new(10, 77, 0, 2).into(),
            destination_ip: Ipv4Addr::new(10, 77, 0, 1).into(),
            traffic_class,
            hop_limit: 64,
            flow_label: 0,
            udp_source_port: 0xc000,
        });
        let bth = Bth::new(Opcode::RC_SEND_MIDDLE, Qpn::new(17), Psn::new(number));
        let mut head = Head::begin(&template, &bth);
        head.finish(&template, 1000);
        head
    }

    fn send(switch: &mut Switch, now: Instant, head: &Head) {
        let payload = Payload::Synthetic { len: 1000 };
        let frame = Frame { head: head.bytes(), payload, trailer: Trailer::Sealed { pad_len: 0 } };
        switch.handle_frame(now, 1, &frame);
    }

    /// The fraction of marked frames, and all arrivals, of `count` frames that each find `queued`
    /// frames before them.
    fn behind(queued: u64, count: u32, traffic_class: u8) -> (f64, Vec<Arrival>) {
        let mut switch = switch(SwitchConfig { ecn: Some(RED), ..plain() });
        let bytes = wire_bytes(1000 + 54 + 4);
        let gap = rate().time_for_bytes(bytes);
        let mut out = Out { now: Instant::ZERO, room: usize::MAX, arrivals: Vec::new() };
        for _ in 0..queued {
            send(&mut switch, out.now, &roce(0, 0));
        }
        for number in 1..=count {
            send(&mut switch, out.now, &roce(traffic_class, number));
            out.now += gap;
            switch.poll_transmit(out.now, &mut out);
        }
        out.arrivals.extend(drain(&mut switch));
        out.arrivals.drain(..queued as usize);
        let marked =
            out.arrivals.iter().filter(|a| Ecn::of(&a.head) == Some(Ecn::Congested)).count();
        assert_eq!(switch.counters(0).output.ecn_marked_frames, marked as u64);
        (marked as f64 / f64::from(count), out.arrivals)
    }

    #[test]
    fn follow_the_queue_between_the_thresholds() {
        let bytes = wire_bytes(1000 + 54 + 4) as f64;
        for queued in [5, 18, 25, 30, 40, 50, 55, 60] {
            let (share, _) = behind(queued, 20_000, 2);
            let queue = queued as f64 * bytes;
            let expected = match queue {
                q if q <= 20_000.0 => 0.0,
                q if q > 60_000.0 => 1.0,
                q => 0.5 * (q - 20_000.0) / 40_000.0,
            };
            // Five standard deviations of 20,000 draws.
            let tolerance = 5.0 * (expected * (1.0 - expected) / 20_000.0_f64).sqrt() + 1e-9;
            assert!(
                (share - expected).abs() <= tolerance,
                "{share} instead of {expected} behind {queue} B"
            );
        }
    }

    #[test]
    fn leave_everything_else_of_the_frame_as_a_sender_would_have_built_it() {
        let (share, arrivals) = behind(60, 100, 0x6a);
        assert_eq!(share, 1.0);
        for (number, arrival) in (1..).zip(&arrivals) {
            assert_eq!(arrival.head, roce(0x6b, number).bytes(), "with its checksum");
        }
    }

    #[test]
    fn spare_those_who_do_not_react() {
        let (share, arrivals) = behind(60, 100, 0x68);
        assert_eq!(share, 0.0);
        assert_eq!(arrivals[0].head, roce(0x68, 1).bytes());
    }

    #[test]
    fn are_the_same_for_the_same_seed() {
        assert_eq!(behind(40, 500, 2), behind(40, 500, 2));
    }
}

mod configuration {
    use super::*;

    #[test]
    fn that_makes_no_sense_is_refused() {
        for ports in [0, 1, 65] {
            let made = Switch::new(SwitchConfig::new(ports, rate())).map(drop);
            assert_eq!(made, Err(SwitchError::Ports { ports }));
        }
        let ecn = RedConfig { kmin_bytes: 2, kmax_bytes: 1, pmax: 0.1 };
        let made = Switch::new(SwitchConfig { ecn: Some(ecn), ..plain() }).map(drop);
        assert!(matches!(made, Err(SwitchError::Output(_))), "{made:?}");
        let mut switch = Switch::new(SwitchConfig { addresses_max: 1, ..plain() }).unwrap();
        assert_eq!(switch.add_static(mac(0), 4), Err(SwitchError::NoPort { port: 4, ports: 4 }));
        assert_eq!(switch.add_static(BROADCAST, 0), Err(SwitchError::GroupAddress));
        assert_eq!(switch.add_static(mac(0), 0), Ok(()));
        assert_eq!(switch.add_static(mac(0), 1), Ok(()), "declared anew");
        assert_eq!(switch.add_static(mac(1), 1), Err(SwitchError::TableFull { addresses_max: 1 }));
    }
}

mod any_traffic {
    use super::*;

    /// A frame: input port; destination station (of which two do not exist) or broadcast; length;
    /// time after the previous frame.
    fn frames() -> impl Strategy<Value = Vec<(u8, u8, usize, u64)>> {
        let frame = (0..PORTS as u8, 0..PORTS as u8 + 3, 60_usize..5000, 0_u64..2000);
        prop::collection::vec(frame, 1..400)
    }

    proptest! {
        #[test]
        fn is_conserved_and_keeps_its_order(frames in frames(), queue_bytes in 0_u64..40_000) {
            let mut switch = switch(SwitchConfig { queue_bytes, ..plain() });
            let mut out = Out { now: Instant::ZERO, room: 64, arrivals: Vec::new() };
            let mut expected = 0;
            for (number, (from, to, len, wait_ns)) in (0..).zip(&frames) {
                out.now += Duration::from_ns(*wait_ns);
                let to = if usize::from(*to) == PORTS + 2 { BROADCAST } else { mac(*to) };
                send_to(&mut switch, out.now, Side::from(*from), [to, mac(*from)], number, *len);
                switch.poll_transmit(out.now, &mut out);
                expected += match to {
                    to if to == mac(*from) => 0,
                    to if (0..PORTS as u8).any(|station| to == mac(station)) => 1,
                    _ => PORTS as u64 - 1,
                };
            }
            out.arrivals.extend(drain(&mut switch));
            let counters: Vec<_> = (0..PORTS).map(|port| switch.counters(port)).collect();
            let received: u64 = counters.iter().map(|c| c.received_frames).sum();
            prop_assert_eq!(received, frames.len() as u64);
            let entered: u64 = counters.iter().map(|c| c.output.entered_frames).sum();
            prop_assert_eq!(entered, expected);
            for (port, c) in counters.iter().enumerate() {
                let out = &c.output;
                prop_assert_eq!(out.entered_frames, out.delivered_frames + out.drops.total());
                prop_assert_eq!((out.in_flight_frames, out.memory_bytes), (0, 0));
                prop_assert!(out.queue_bytes_max <= queue_bytes);
                prop_assert_eq!(
                    c.received_frames,
                    frames.iter().filter(|f| usize::from(f.0) == port).count() as u64
                );
            }
            // First come, first served per output, and therefore per flow.
            let mut last = [None; PORTS];
            for arrival in &out.arrivals {
                let number = Some(arrival.number());
                prop_assert!(last[arrival.side] < number);
                last[arrival.side] = number;
                prop_assert_ne!(usize::from(frames[arrival.number() as usize].0), arrival.side);
            }
        }
    }
}
