//! Merges the states of the cores that share a pair into the state of the pair.

use crate::state::{LinkStatus, Named, ReadAheadState, SealState, TransportState};
use crate::status::{
    AcceleratorState, FibreState, LoopStatus, PairStatus, PortStatus, Rates, Tenant,
};

impl PairStatus {
    /// The state of a pair whose cores are in these states, of which there must be at least one.
    pub fn of_cores(cores: Vec<PairStatus>) -> Option<PairStatus> {
        cores.into_iter().reduce(|mut sum, one| {
            sum.add(one);
            sum
        })
    }

    fn add(&mut self, other: PairStatus) {
        for (port, other) in self.ports.iter_mut().zip(other.ports) {
            port.add(other);
        }
        self.frame_loop.add(other.frame_loop);
        for (state, other) in
            [(&mut self.accelerator, other.accelerator), (&mut self.responders, other.responders)]
        {
            if let (Some(state), Some(other)) = (state, other) {
                state.add(other);
            }
        }
        if let (Some(fibre), Some(other)) = (&mut self.fibre, other.fibre) {
            fibre.add(other);
        }
        if let (Some(transport), Some(other)) = (&mut self.transport, other.transport) {
            transport.add(other);
        }
        if let (Some(read_ahead), Some(other)) = (&mut self.read_ahead, other.read_ahead) {
            read_ahead.add(other);
        }
        self.cores.extend(other.cores);
    }
}

impl PortStatus {
    fn add(&mut self, other: PortStatus) {
        self.link_is_up &= other.link_is_up;
        // All cores see the same link.
        self.link_ups = self.link_ups.max(other.link_ups);
        self.rx_frames += other.rx_frames;
        self.rx_bytes += other.rx_bytes;
        self.tx_frames += other.tx_frames;
        self.tx_bytes += other.tx_bytes;
        self.rates.add(other.rates);
        add_named(&mut self.rx_drops, other.rx_drops);
        add_named(&mut self.tx_drops, other.tx_drops);
        self.peer_violations += other.peer_violations;
        add_named(&mut self.other, other.other);
    }
}

impl Rates {
    fn add(&mut self, other: Rates) {
        self.rx_frames_per_s += other.rx_frames_per_s;
        self.rx_bits_per_s += other.rx_bits_per_s;
        self.tx_frames_per_s += other.tx_frames_per_s;
        self.tx_bits_per_s += other.tx_bits_per_s;
    }
}

impl LoopStatus {
    fn add(&mut self, other: LoopStatus) {
        self.turns += other.turns;
        self.sleeps += other.sleeps;
        self.malformed_frames += other.malformed_frames;
        self.refused_frames += other.refused_frames;
        self.port_errors += other.port_errors;
        self.lateness_us_max = self.lateness_us_max.max(other.lateness_us_max);
    }
}

impl AcceleratorState {
    fn add(&mut self, other: AcceleratorState) {
        self.stored_bytes += other.stored_bytes;
        self.stored_bytes_max += other.stored_bytes_max;
        self.is_draining |= other.is_draining;
        add_named(&mut self.counters, other.counters);
        add_named(&mut self.drops, other.drops);
        for other in other.tenants {
            match self.tenants.iter_mut().find(|tenant| tenant.prefix == other.prefix) {
                Some(tenant) => tenant.add(&other),
                None => self.tenants.push(other),
            }
        }
        let news = other.advice.into_iter().filter(|advice| !self.advice.contains(advice));
        let news: Vec<_> = news.collect();
        self.advice.extend(news);
        self.flows.extend(other.flows);
    }
}

impl Tenant {
    fn add(&mut self, other: &Tenant) {
        self.flows += other.flows;
        self.stored_bytes += other.stored_bytes;
        self.share_bytes += other.share_bytes;
        self.refused_packets += other.refused_packets;
    }
}

impl TransportState {
    /// Each core has its own sessions, each with the far box's core that serves the same hosts.
    fn add(&mut self, other: TransportState) {
        add_named(&mut self.counters, other.counters);
        add_named(&mut self.drops, other.drops);
        self.refused = self.refused.take().or(other.refused);
        self.sessions.extend(other.sessions);
        for (far, other) in self.far.iter_mut().zip(other.far) {
            far.reached.extend(other.reached);
            far.is_silent |= other.is_silent;
        }
        if let (Some(seal), Some(other)) = (&mut self.seal, other.seal) {
            seal.add(other);
        }
    }
}

impl SealState {
    fn add(&mut self, other: SealState) {
        let news = other.troubles.into_iter().filter(|trouble| !self.troubles.contains(trouble));
        let news: Vec<String> = news.collect();
        self.troubles.extend(news);
        add_named(&mut self.counters, other.counters);
        add_named(&mut self.drops, other.drops);
        for (peer, other) in self.peers.iter_mut().zip(other.peers) {
            peer.handshakes += other.handshakes;
            peer.is_shaking_hands |= other.is_shaking_hands;
            // The oldest keys are reported.
            if peer.key_age_s < other.key_age_s {
                (peer.cipher, peer.key_age_s) = (other.cipher, other.key_age_s);
            }
        }
    }
}

impl ReadAheadState {
    fn add(&mut self, other: ReadAheadState) {
        self.held_bytes += other.held_bytes;
        self.held_bytes_max += other.held_bytes_max;
        add_named(&mut self.counters, other.counters);
        self.connections.extend(other.connections);
    }
}

impl FibreState {
    /// Each core serves one direction, with its share of the memory.
    fn add(&mut self, other: FibreState) {
        self.memory_bytes += other.memory_bytes;
        for (direction, other) in self.directions.iter_mut().zip(other.directions) {
            direction.add(other);
        }
    }
}

impl LinkStatus {
    fn add(&mut self, other: LinkStatus) {
        self.entered_frames += other.entered_frames;
        self.delivered_frames += other.delivered_frames;
        self.delivered_bytes += other.delivered_bytes;
        self.in_flight_frames += other.in_flight_frames;
        self.ecn_marked_frames += other.ecn_marked_frames;
        self.late_frames += other.late_frames;
        self.duplicated_frames += other.duplicated_frames;
        self.corrupted_frames += other.corrupted_frames;
        self.queue_bytes_max = self.queue_bytes_max.max(other.queue_bytes_max);
        add_named(&mut self.drops, other.drops);
        for (rule, other) in self.rules.iter_mut().zip(other.rules) {
            rule.selected_frames += other.selected_frames;
            rule.struck_frames += other.struck_frames;
        }
    }
}

fn add_named(sum: &mut Named, other: Named) {
    for (name, n) in other {
        *sum.entry(name).or_default() += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::named;
    use crate::status::{AdviceStatus, CoreStatus};

    fn advice(name: &str) -> AdviceStatus {
        AdviceStatus {
            advice: name.into(),
            requester: "10.0.0.1".into(),
            responder: "10.0.0.2".into(),
            text: "cause: cure".into(),
        }
    }

    fn core(number: usize, n: u64) -> PairStatus {
        let port = PortStatus {
            side: "lan".into(),
            port: "eth1".into(),
            manner: None,
            link_is_up: true,
            link_ups: n,
            rx_frames: n,
            rx_bytes: n,
            tx_frames: n,
            tx_bytes: n,
            rates: Rates { rx_bits_per_s: n as f64, ..Rates::default() },
            rx_drops: named([("buffer_full", n)].into_iter()),
            tx_drops: Named::new(),
            peer_violations: n,
            other: Named::new(),
        };
        let accelerator = AcceleratorState {
            stored_bytes: n,
            stored_bytes_max: 100,
            is_draining: number == 1,
            counters: named([("pseudo_acks", n)].into_iter()),
            drops: Named::new(),
            tenants: vec![Tenant {
                prefix: "10.0.0.1".into(),
                flows: 1,
                stored_bytes: n,
                share_bytes: 50,
                refused_packets: n,
            }],
            advice: vec![advice("early-retries"), advice(["congestion", "lan-gaps"][number % 2])],
            flows: Vec::new(),
        };
        PairStatus {
            name: "one".into(),
            ports: vec![port],
            frame_loop: LoopStatus { turns: n, lateness_us_max: n as f64, ..LoopStatus::default() },
            accelerator: Some(accelerator),
            responders: None,
            transport: None,
            read_ahead: None,
            fibre: None,
            carrier: None,
            cores: vec![CoreStatus { core: number, ..CoreStatus::default() }],
        }
    }

    #[test]
    fn what_cores_count_is_added_up_and_bounds_are_those_of_all() {
        let pair = PairStatus::of_cores(vec![core(0, 3), core(1, 5), core(2, 2)]).unwrap();
        let port = &pair.ports[0];
        assert_eq!(
            (port.rx_frames, port.tx_bytes, port.link_ups, port.peer_violations),
            (10, 10, 5, 10)
        );
        assert_eq!((port.rates.rx_bits_per_s, port.rx_drops["buffer_full"]), (10.0, 10));
        assert_eq!((pair.frame_loop.turns, pair.frame_loop.lateness_us_max), (10, 5.0));
        let accelerator = pair.accelerator.as_ref().unwrap();
        assert_eq!((accelerator.stored_bytes, accelerator.stored_bytes_max), (10, 300));
        assert_eq!((accelerator.counters["pseudo_acks"], accelerator.is_draining), (10, true));
        let [tenant] = &accelerator.tenants[..] else { panic!("one tenant") };
        assert_eq!((tenant.flows, tenant.stored_bytes, tenant.share_bytes), (3, 10, 150));
        let advice: Vec<&str> = accelerator.advice.iter().map(|one| &*one.advice).collect();
        assert_eq!(advice, ["early-retries", "congestion", "lan-gaps"], "each once");
        assert_eq!(pair.cores.iter().map(|core| core.core).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(PairStatus::of_cores(Vec::new()).is_none());
    }

    #[test]
    fn sessions_of_all_cores_are_listed_and_what_they_count_is_added_up() {
        let transport = |number: usize, far_box: &str, n: u64| {
            let transport = serde_json::json!({
                "counters": {"tunnelled": n},
                "drops": {"corrupted": n},
                "refused": (number == 1).then_some("box 7"),
                "sessions": [{
                    "far_box": far_box, "is_open": true, "streams_out": 0, "streams_in": 0,
                    "send_bytes": 0, "send_bytes_peak": 0, "receive_bytes": 0,
                    "receive_bytes_peak": 0, "far_room_bytes": 0, "paths": []
                }],
                "far": [{
                    "prefix": "10.2.0.0/16", "via": null, "reached": [far_box],
                    "is_silent": number == 1
                }],
                "seal": {
                    "public_key": "own",
                    "peers": [{
                        "name": "far", "public_key": "its", "cipher": "c", "key_age_s": n,
                        "handshakes": n
                    }],
                    "counters": {"sealed": n}, "drops": {}
                }
            });
            let transport = Some(serde_json::from_value(transport).unwrap());
            PairStatus { transport, ..core(number, n) }
        };
        let pair = PairStatus::of_cores(vec![transport(0, "a", 3), transport(1, "b", 5)]).unwrap();
        let sum = pair.transport.unwrap();
        assert_eq!((sum.counters["tunnelled"], sum.drops["corrupted"]), (8, 8));
        assert_eq!(sum.sessions.iter().map(|one| &*one.far_box).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            (&*sum.far[0].reached, sum.far[0].is_silent),
            (&["a".to_string(), "b".into()][..], true)
        );
        let seal = sum.seal.unwrap();
        assert_eq!(
            (seal.counters["sealed"], seal.peers[0].handshakes, seal.peers[0].key_age_s),
            (8, 8, Some(5.0))
        );
        assert_eq!(sum.refused.as_deref(), Some("box 7"));
    }

    #[test]
    fn a_port_is_up_when_it_is_for_all_cores() {
        let mut half = core(1, 0);
        half.ports[0].link_is_up = false;
        assert!(!PairStatus::of_cores(vec![core(0, 0), half]).unwrap().ports[0].link_is_up);
    }
}
