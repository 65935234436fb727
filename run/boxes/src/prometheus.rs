//! A box's state in Prometheus' text format.

use crate::carrier::{CarrierCounters, PortCarrier};
use crate::state::{Flow, Named, PathState, ReadAheadState, SealState, TransportState};
use crate::status::{
    AcceleratorState, BoxStatus, CoreStatus, FibreState, PairStatus, PortStatus, Tenant,
};
use longhaul_accel::{Counters, FlowCounters, FlowState, Mode, PassReason};
use longhaul_health::{Metrics, labels};
use longhaul_link::LinkCounters;
use longhaul_port::PortCounters;

/// Maximum number of flows per pair with metrics of their own.
const FLOWS_LISTED: usize = 256;

/// The metrics of boxes.
#[derive(Default)]
struct BoxMetrics(Metrics);

/// The metrics of boxes in these states.
pub fn exposition<'a>(states: impl IntoIterator<Item = &'a BoxStatus>) -> String {
    let mut metrics = BoxMetrics::default();
    for one in states {
        metrics.0.gauge(
            "longhaul_box_uptime_seconds",
            "Time since the box was started.",
            &labels(&[("box", &one.name)]),
            one.uptime_s,
        );
        metrics.0.gauge(
            "longhaul_box_ready",
            "1 while the box is ready: ports up, not draining and, with a transport, a far box \
             reached.",
            &labels(&[("box", &one.name)]),
            f64::from(u8::from(one.not_ready.is_empty())),
        );
        for pair in &one.pairs {
            metrics.pair(&one.name, pair);
        }
    }
    metrics.0.exposition()
}

/// The description of a counter in its declaration.
fn description(names: &[(&'static str, &'static str)], name: &str) -> &'static str {
    names.iter().find(|(declared, _)| *declared == name).map_or("", |(_, meaning)| meaning)
}

impl BoxMetrics {
    /// Adds the counters of a part, declared as `names`.
    fn counters(
        &mut self,
        part: &str,
        names: &[(&'static str, &'static str)],
        of_part: &[(&str, &str)],
        values: &Named,
    ) {
        for (name, help) in names {
            let value = values.get(*name).copied().unwrap_or(0);
            self.0.count(&format!("longhaul_{part}_{name}"), help, &labels(of_part), value);
        }
    }

    fn drops(&mut self, part: &str, help: &str, of_part: &[(&str, &str)], drops: &Named) {
        for (reason, value) in drops {
            let with_reason = labels(&[of_part, &[("reason", reason)]].concat());
            self.0.count(&format!("longhaul_{part}_drops"), help, &with_reason, *value);
        }
    }

    fn pair(&mut self, box_name: &str, pair: &PairStatus) {
        for port in &pair.ports {
            self.port(box_name, pair, port);
        }
        let of_pair = [("box", box_name), ("pair", &*pair.name)];
        let lateness = pair.frame_loop.lateness_us_max / 1e6;
        self.0.gauge(
            "longhaul_box_lateness_seconds_max",
            "Maximum delay of a frame or timer after its deadline.",
            &labels(&of_pair),
            lateness,
        );
        for core in &pair.cores {
            self.core(of_pair, core);
        }
        for port in pair.carrier.iter().flat_map(|carrier| &carrier.ports) {
            self.carrier(of_pair, port);
        }
        for (half, state) in [("requesters", &pair.accelerator), ("responders", &pair.responders)] {
            if let Some(state) = state {
                self.accelerator(&[&of_pair[..], &[("half", half)]].concat(), state);
            }
        }
        if let Some(accelerator) = &pair.accelerator {
            self.flows(of_pair, &accelerator.flows);
        }
        if let Some(transport) = &pair.transport {
            self.transport(of_pair, transport);
        }
        if let Some(state) = &pair.read_ahead {
            self.read_ahead(of_pair, state);
        }
        if let Some(fibre) = &pair.fibre {
            self.fibre(of_pair, fibre);
        }
    }

    fn carrier(&mut self, of_pair: [(&str, &str); 2], port: &PortCarrier) {
        let of_port = [("side", &*port.side), ("port", &*port.port)];
        let of_port = labels(&[&of_pair[..], &of_port].concat());
        for (name, help) in CarrierCounters::NAMES {
            let value = if *name == "losses" { port.losses } else { port.takedowns };
            self.0.count(&format!("longhaul_box_carrier_{name}"), help, &of_port, value);
        }
        self.0.gauge(
            "longhaul_box_carrier_taken_down",
            "1 while the box has taken the port down because the opposite one has no carrier.",
            &of_port,
            f64::from(u8::from(port.taken_down.is_some())),
        );
    }

    fn core(&mut self, of_pair: [(&str, &str); 2], core: &CoreStatus) {
        let number = core.core.to_string();
        let of_core = labels(&[&of_pair[..], &[("core", &*number)]].concat());
        for (name, help, value) in [
            (
                "received_frames",
                "Frames received from the core's own queues of the ports.",
                core.received_frames,
            ),
            (
                "handed_over",
                "Received frames handed over to the cores to which they belong.",
                core.handed_over,
            ),
            (
                "ring_full",
                "Frames dropped because the ring to their core was full.",
                core.ring_full,
            ),
            ("sleeps", "Times the core slept.", core.sleeps),
        ] {
            self.0.count(&format!("longhaul_box_core_{name}"), help, &of_core, value);
        }
    }

    fn port(&mut self, box_name: &str, pair: &PairStatus, port: &PortStatus) {
        let of_port = [
            ("box", box_name),
            ("pair", &*pair.name),
            ("side", &*port.side),
            ("port", &*port.port),
        ];
        let plain = labels(&of_port);
        self.0.gauge(
            "longhaul_box_port_up",
            "1 while the link is up.",
            &plain,
            f64::from(u8::from(port.link_is_up)),
        );
        for (name, value) in [
            ("rx_frames", port.rx_frames),
            ("rx_bytes", port.rx_bytes),
            ("tx_frames", port.tx_frames),
            ("tx_bytes", port.tx_bytes),
            ("link_ups", port.link_ups),
        ] {
            let help = description(PortCounters::NAMES, name);
            self.0.count(&format!("longhaul_box_port_{name}"), help, &plain, value);
        }
        for (way, drops) in [("rx", &port.rx_drops), ("tx", &port.tx_drops)] {
            let of_way = [&of_port[..], &[("direction", way)]].concat();
            self.drops("box_port", "Frames dropped at the port.", &of_way, drops);
        }
    }

    /// Adds one half of a box: near or far.
    fn accelerator(&mut self, of_half: &[(&str, &str)], state: &AcceleratorState) {
        let plain = labels(of_half);
        self.0.gauge(
            "longhaul_accelerator_draining",
            "1 while the accelerator accepts no new flows and releases its flows.",
            &plain,
            f64::from(u8::from(state.is_draining)),
        );
        self.0.gauge(
            "longhaul_accelerator_store_bytes",
            "Memory of stored requests.",
            &plain,
            state.stored_bytes as f64,
        );
        self.0.gauge(
            "longhaul_accelerator_store_bytes_max",
            "Limit of the memory of stored requests.",
            &plain,
            state.stored_bytes_max as f64,
        );
        for tenant in &state.tenants {
            self.tenant(of_half, tenant);
        }
        self.counters("accelerator", Counters::NAMES, of_half, &state.counters);
        self.drops("accelerator", "Frames that were not forwarded.", of_half, &state.drops);
    }

    /// Adds one of the tenants that store most.
    fn tenant(&mut self, of_half: &[(&str, &str)], tenant: &Tenant) {
        let of_tenant = labels(&[of_half, &[("tenant", &*tenant.prefix)]].concat());
        for (name, help, value) in [
            ("store_bytes", "Memory of the tenant's stored requests.", tenant.stored_bytes),
            (
                "share_bytes",
                "Memory above which the tenant's requests are acknowledged only once delivered.",
                tenant.share_bytes,
            ),
            ("flows", "Flows of the tenant.", tenant.flows.into()),
        ] {
            self.0.gauge(
                &format!("longhaul_accelerator_tenant_{name}"),
                help,
                &of_tenant,
                value as f64,
            );
        }
        self.0.count(
            "longhaul_accelerator_tenant_refused_packets",
            "Request packets of the tenant refused for lack of memory.",
            &of_tenant,
            tenant.refused_packets,
        );
    }

    /// Adds the flows of both halves.
    fn flows(&mut self, of_pair: [(&str, &str); 2], flows: &[Flow]) {
        for kind in FlowState::ALL.map(FlowState::name) {
            for mode in Mode::ALL.map(Mode::name) {
                let count =
                    flows.iter().filter(|flow| flow.state == kind && flow.mode == mode).count();
                let with_state = [&of_pair[..], &[("state", kind), ("mode", mode)]].concat();
                self.0.gauge(
                    "longhaul_accelerator_flows",
                    "Flows known.",
                    &labels(&with_state),
                    count as f64,
                );
            }
        }
        for reason in PassReason::ALL.map(PassReason::name) {
            let count =
                flows.iter().filter(|flow| flow.pass_reason.as_deref() == Some(reason)).count();
            let with_reason = [&of_pair[..], &[("reason", reason)]].concat();
            let help = "Flows that pass unaccelerated, by reason.";
            self.0.gauge(
                "longhaul_accelerator_passing_flows",
                help,
                &labels(&with_reason),
                count as f64,
            );
        }
        let mut listed: Vec<&Flow> = flows.iter().collect();
        listed
            .sort_by_key(|flow| std::cmp::Reverse((flow.stored_bytes, flow.stored_payload_bytes)));
        listed.truncate(FLOWS_LISTED);
        self.0.gauge(
            "longhaul_accelerator_flows_unlisted",
            "Flows without metrics of their own: those beyond the first 256 by stored bytes, then \
             by total stored bytes.",
            &labels(&of_pair),
            (flows.len() - listed.len()) as f64,
        );
        for flow in listed {
            self.flow(of_pair, flow);
        }
    }

    fn flow(&mut self, of_pair: [(&str, &str); 2], flow: &Flow) {
        let requester_qpn = flow.requester_qpn.map_or_else(String::new, |qpn| qpn.to_string());
        let (responder_qpn, vlan) = (flow.responder_qpn.to_string(), flow.vlan.to_string());
        let of_flow = [
            ("requester", &*flow.requester),
            ("requester_qpn", &*requester_qpn),
            ("responder", &*flow.responder),
            ("responder_qpn", &*responder_qpn),
            ("vlan", &*vlan),
            ("mode", &*flow.mode),
            ("role", &*flow.role),
            ("state", &*flow.state),
        ];
        let of_flow = [&of_pair[..], &of_flow].concat();
        let plain = labels(&of_flow);
        self.0.gauge(
            "longhaul_accelerator_flow_store_bytes",
            "Memory of the flow's stored requests.",
            &plain,
            flow.stored_bytes as f64,
        );
        for (name, help, value) in [
            ("rtt_seconds", "Smoothed RTT from the box to the responder.", flow.rtt_us),
            (
                "ack_delay_seconds",
                "Smoothed delay of pseudo-ACKs after their requests.",
                flow.ack_delay_us,
            ),
        ] {
            if let Some(us) = value {
                self.0.gauge(&format!("longhaul_accelerator_flow_{name}"), help, &plain, us / 1e6);
            }
        }
        for (name, value) in [
            ("stored_packets", flow.stored_packets),
            ("stored_payload_bytes", flow.stored_payload_bytes),
            ("passed_packets", flow.passed_packets),
            ("delivered_packets", flow.delivered_packets),
            ("pseudo_acks", flow.pseudo_acks),
        ] {
            let help = description(FlowCounters::NAMES, name);
            self.0.count(&format!("longhaul_accelerator_flow_{name}"), help, &plain, value);
        }
        for (cause, value) in [
            ("nak", flow.retransmits_nak),
            ("rnr", flow.retransmits_rnr),
            ("timeout", flow.retransmits_timeout),
        ] {
            let with_cause = labels(&[&of_flow[..], &[("cause", cause)]].concat());
            let help = "Retransmitted packets, by cause; not all of them were lost.";
            self.0.count("longhaul_accelerator_flow_retransmits", help, &with_cause, value);
        }
    }

    fn transport(&mut self, of_pair: [(&str, &str); 2], state: &TransportState) {
        let names = longhaul_wan::Counters::NAMES;
        self.counters("transport", names, &of_pair, &state.counters);
        let help = "Frames that the transport dropped.";
        self.drops("transport", help, &of_pair, &state.drops);
        if let Some(seal) = &state.seal {
            self.seal(of_pair, seal);
        }
        for session in &state.sessions {
            let of_session = [&of_pair[..], &[("far_box", &*session.far_box)]].concat();
            for (name, help, value) in [
                (
                    "send_bytes",
                    "Memory of frames that the far box has not acknowledged.",
                    session.send_bytes,
                ),
                (
                    "receive_bytes",
                    "Memory of received frames that wait for earlier ones or for room.",
                    session.receive_bytes,
                ),
            ] {
                let name = format!("longhaul_transport_{name}");
                self.0.gauge(&name, help, &labels(&of_session), value as f64);
            }
            for (number, path) in (1..).zip(&session.paths) {
                let number = i32::to_string(&number);
                self.path(&labels(&[&of_session[..], &[("path", &*number)]].concat()), path);
            }
        }
    }

    fn path(&mut self, of_path: &str, path: &PathState) {
        let rtt = path.rtt_us.unwrap_or(0.0) / 1e6;
        for (name, help, value) in [
            ("up", "1 while the path is up.", f64::from(u8::from(path.is_up))),
            ("rtt_seconds", "Smoothed RTT.", rtt),
            ("loss", "Fraction of transmissions that are lost, before repair.", path.loss),
            (
                "residual_loss",
                "Fraction of transmissions that stay lost after repair.",
                path.residual,
            ),
            ("mtu_bytes", "Longest IP packet that is known to fit the path.", path.mtu.into()),
        ] {
            self.0.gauge(&format!("longhaul_transport_path_{name}"), help, of_path, value);
        }
        for (name, help, value) in [
            (
                "split",
                "Frames and parts that were split because they exceed the path's MTU.",
                path.split,
            ),
            ("black_holes", "Times the path stopped delivering long packets.", path.black_holes),
            ("sent", "Numbered transmissions.", path.sent),
            ("lost", "Transmissions declared lost.", path.lost),
            ("outages", "Outages of the path.", path.outages),
            ("parity_sent", "Parities sent.", path.parity_sent),
            ("repaired", "Transmissions that the far box repaired by parity.", path.repaired),
        ] {
            self.0.count(&format!("longhaul_transport_path_{name}"), help, of_path, value);
        }
    }

    fn read_ahead(&mut self, of_pair: [(&str, &str); 2], state: &ReadAheadState) {
        let plain = labels(&of_pair);
        let help = "Memory reserved for data that is fetched ahead.";
        self.0.gauge("longhaul_read_ahead_held_bytes", help, &plain, state.held_bytes as f64);
        let names = longhaul_readahead::Counters::NAMES;
        self.counters("read_ahead", names, &of_pair, &state.counters);
    }

    fn seal(&mut self, of_pair: [(&str, &str); 2], state: &SealState) {
        self.counters("seal", longhaul_seal::Counters::NAMES, &of_pair, &state.counters);
        self.drops("seal", "Frames that the seal dropped.", &of_pair, &state.drops);
        for peer in &state.peers {
            let of_peer = labels(&[&of_pair[..], &[("peer", &*peer.name)]].concat());
            let help = "1 while there are keys with a far box.";
            let has_keys = f64::from(u8::from(peer.key_age_s.is_some()));
            self.0.gauge("longhaul_seal_peer_has_keys", help, &of_peer, has_keys);
            if let Some(age) = peer.key_age_s {
                self.0.gauge(
                    "longhaul_seal_peer_key_age_seconds",
                    "Age of the keys in use.",
                    &of_peer,
                    age,
                );
            }
            let help = "Completed handshakes with the far box.";
            self.0.count("longhaul_seal_peer_handshakes", help, &of_peer, peer.handshakes);
        }
    }

    fn fibre(&mut self, of_pair: [(&str, &str); 2], state: &FibreState) {
        let plain = labels(&of_pair);
        self.0.gauge(
            "longhaul_fibre_delay_seconds",
            "One-way delay.",
            &plain,
            state.delay_us / 1e6,
        );
        self.0.gauge(
            "longhaul_fibre_memory_bytes",
            "Memory of the frames in flight.",
            &plain,
            state.memory_bytes as f64,
        );
        for direction in &state.directions {
            let way = [&of_pair[..], &[("direction", &*direction.direction)]].concat();
            let labelled = labels(&way);
            for (name, value) in [
                ("entered_frames", direction.entered_frames),
                ("delivered_frames", direction.delivered_frames),
                ("delivered_bytes", direction.delivered_bytes),
                ("ecn_marked_frames", direction.ecn_marked_frames),
                ("late_frames", direction.late_frames),
                ("duplicated_frames", direction.duplicated_frames),
                ("corrupted_frames", direction.corrupted_frames),
            ] {
                let help = description(LinkCounters::NAMES, name);
                self.0.count(&format!("longhaul_fibre_{name}"), help, &labelled, value);
            }
            self.drops("fibre", "Frames that the fibre dropped.", &way, &direction.drops);
            for rule in &direction.rules {
                let number = rule.number.to_string();
                let of_rule =
                    labels(&[&way[..], &[("number", &*number), ("rule", &*rule.rule)]].concat());
                let help = "Frames that the rule selected.";
                self.0.count(
                    "longhaul_fibre_rule_selected_frames",
                    help,
                    &of_rule,
                    rule.selected_frames,
                );
                let help = "Frames to which the rule was applied.";
                self.0.count(
                    "longhaul_fibre_rule_struck_frames",
                    help,
                    &of_rule,
                    rule.struck_frames,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::LinkStatus;
    use longhaul_link::{Link, LinkConfig};

    fn flow(number: u32) -> Flow {
        Flow {
            requester: "10.0.0.1".to_string(),
            requester_qpn: Some(1),
            responder: "10.0.0.2".to_string(),
            responder_qpn: number,
            vlan: 0,
            state: "terminated".to_string(),
            mode: "early".to_string(),
            role: "near".to_string(),
            learnt: "cm".to_string(),
            rtt_us: Some(10_000.0),
            ack_delay_us: Some(20.0),
            stored_bytes: u64::from(number),
            stored_frames: 0,
            outstanding_reads: 0,
            back_pressure: false,
            pass_reason: None,
            stored_packets: 1,
            stored_payload_bytes: 2,
            passed_packets: 3,
            delivered_packets: 4,
            pseudo_acks: 5,
            acks_absorbed: 6,
            retransmits_nak: 7,
            retransmits_rnr: 8,
            retransmits_timeout: 9,
            drops: crate::state::Named::new(),
        }
    }

    #[test]
    fn the_fullest_flows_have_metrics_and_the_others_are_counted() {
        let flows: Vec<Flow> = (0..300).map(flow).collect();
        let mut metrics = BoxMetrics::default();
        metrics.flows([("box", "b"), ("pair", "p")], &flows);
        let samples = |name: &str| metrics.0.samples(name);
        let delays = samples("longhaul_accelerator_flow_ack_delay_seconds");
        assert_eq!(delays.lines().count(), FLOWS_LISTED);
        assert!(
            delays.contains("responder_qpn=\"299\"") && !delays.contains("responder_qpn=\"43\"")
        );
        assert!(delays.lines().all(|line| line.ends_with(" 0.00002")), "{delays}");
        assert_eq!(
            samples("longhaul_accelerator_flows_unlisted"),
            "longhaul_accelerator_flows_unlisted{box=\"b\",pair=\"p\"} 44\n"
        );
        let retransmits = samples("longhaul_accelerator_flow_retransmits_total");
        assert_eq!(retransmits.lines().count(), 3 * FLOWS_LISTED);
        let name = "longhaul_accelerator_flow_retransmits_total";
        let retransmits = metrics.0.described().find(|(one, ..)| *one == name).unwrap();
        assert_eq!((retransmits.1, retransmits.2.is_empty()), ("counter", false));
    }

    #[test]
    fn a_fibre_is_described_as_its_counters_are_declared() {
        let directions = LinkStatus::of(&Link::new(LinkConfig::default()).unwrap());
        let fibre = FibreState {
            delay_us: 5.0,
            rate_bits_per_s: 0,
            memory_bytes: 0,
            memory_bytes_max: 0,
            directions,
        };
        let mut metrics = BoxMetrics::default();
        metrics.fibre([("box", "b"), ("pair", "p")], &fibre);
        let entered = ("longhaul_fibre_entered_frames_total", "counter", "Frames that entered.");
        assert!(metrics.0.described().any(|one| one == entered));
        assert!(metrics.0.described().all(|(.., help)| !help.is_empty()));
        let drops = metrics.0.samples("longhaul_fibre_drops_total");
        assert_eq!(drops.lines().count(), 2 * longhaul_link::DropReason::ALL.len());
    }

    #[test]
    fn a_tenant_has_its_share_in_metrics() {
        let tenant = Tenant {
            prefix: "10.1.0.0/16".to_string(),
            flows: 3,
            stored_bytes: 1000,
            share_bytes: 5000,
            refused_packets: 7,
        };
        let mut metrics = BoxMetrics::default();
        metrics.tenant(&[("box", "b"), ("half", "requesters")], &tenant);
        for (name, value) in [
            ("tenant_store_bytes", 1000),
            ("tenant_share_bytes", 5000),
            ("tenant_refused_packets_total", 7),
        ] {
            let name = format!("longhaul_accelerator_{name}");
            let labels = "box=\"b\",half=\"requesters\",tenant=\"10.1.0.0/16\"";
            assert_eq!(metrics.0.samples(&name), format!("{name}{{{labels}}} {value}\n"));
        }
    }
}
