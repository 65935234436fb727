//! Connections set up by the RDMA connection manager: the first host initiates, the second accepts.

use super::address_of;
use super::program::{End, Host, PORT, READS_SERVED, Turn};
use longhaul_cm::{
    Accept, ConnectRequest, ConnectionId, Event, RdmaCmHeader, ServiceId, Transport,
};
use longhaul_units::Instant;

impl Host {
    /// Requests a connection; the private data carry the QP and its life.
    pub(super) fn ask(&mut self, now: Instant, qp: usize) {
        let queue = &self.queues[qp];
        let [source, destination] = [self.number, 1 - self.number].map(address_of);
        let header = RdmaCmHeader { source_port: 0, source, destination };
        let data = [(qp as u32).to_be_bytes(), (queue.life as u32).to_be_bytes()].concat();
        let request = ConnectRequest {
            destination_ip: destination,
            source_ip: source,
            service_id: ServiceId::tcp(PORT),
            transport: Transport::Rc,
            local_qpn: queue.qpn,
            starting_psn: self.plan.first_psn(qp, 1 - self.number, queue.life),
            responder_resources: READS_SERVED,
            initiator_depth: self.setup.nic.reads,
            flow_control: false,
            retry_count: self.setup.nic.retries,
            rnr_retry_count: self.setup.nic.rnr_retries,
            path_mtu_code: self.setup.mtu_told.unwrap_or(self.setup.mtu).code(),
            local_ack_timeout: self.setup.nic.timeout,
            srq: false,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            private_data: &header.with_user_data(&data).expect("it is short"),
        };
        self.queues[qp].connection =
            Some(self.rnic.cm().connect(now, &request).expect("there is room"));
    }

    fn queue_of(&self, connection: ConnectionId) -> Option<usize> {
        self.queues.iter().position(|queue| queue.connection == Some(connection))
    }

    /// Handles an event of the connection manager.
    pub(super) fn manage(&mut self, now: Instant, event: Event) {
        let connection = event.connection();
        if let Event::ConnectRequest { info, .. } = &event {
            let data = info.user_data();
            let word =
                |at: usize| u32::from_be_bytes(*data[at..].first_chunk().expect("it is ours"));
            return self.accept(now, connection, word(0) as usize, word(4) as usize);
        }
        let Some(qp) = self.queue_of(connection) else { return };
        let completed = self.queues[qp].completed;
        match event {
            Event::ConnectResponse { .. } => {
                self.make_ready(now, qp);
                self.rnic.cm().ready_to_use(now, connection).expect("it was answered");
                self.begin(now, qp);
                if self.queues[qp].life + 1 < self.setup.lives {
                    self.add_turn(now + self.setup.lifetime, qp, Turn::Down);
                }
            }
            Event::Established { .. } => self.begin(now, qp),
            Event::Rejected { reason, .. } => self.fail(now, qp, completed, End::Rejected(reason)),
            Event::Unreachable { waited, .. } => {
                self.fail(now, qp, completed, End::Unreachable(waited))
            }
            Event::Disconnected { .. } if self.number == 1 => {
                self.reset(now, qp);
                self.queues[qp].connection = None;
            }
            Event::Disconnected { cause, .. } => {
                self.queues[qp].connection = None;
                if self.queues[qp].is_up {
                    return self.fail(now, qp, completed, End::Disconnected(cause));
                }
                self.add_turn(now + self.setup.gap, qp, Turn::Up);
            }
            _ => {}
        }
    }

    fn accept(&mut self, now: Instant, connection: ConnectionId, qp: usize, life: usize) {
        if self.queues[qp].is_up {
            self.reset(now, qp);
        }
        self.begin_life(qp, life);
        self.initialize(now, qp);
        self.make_ready(now, qp);
        let accept = Accept {
            local_qpn: self.queues[qp].qpn,
            starting_psn: self.plan.first_psn(qp, 1 - self.number, life),
            responder_resources: READS_SERVED,
            initiator_depth: self.setup.nic.reads,
            flow_control: false,
            rnr_retry_count: self.setup.nic.rnr_retries,
            srq: false,
            private_data: &[],
        };
        self.queues[qp].connection = Some(connection);
        self.rnic.cm().accept(now, connection, &accept).expect("it was just asked for");
    }
}
