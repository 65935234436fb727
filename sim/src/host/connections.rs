//! Connections of the RDMA connection manager, which end when the requesting program is done.
//!
//! Each end announces its memory in the private data; those of storage programs begin as NVMe over
//! Fabrics has it. The kernel's processing time is not modelled: MADs are answered on arrival.

use super::{Nic, Peer, Program, READS_SERVED, RNR_RETRIES, Terms};
use longhaul_cm::{
    Accept, ConnectRequest, ConnectionId, DisconnectCause, Event as Cm, ListenId, RdmaCmHeader,
    RejectReason, ReplyInfo, RequestInfo, ServiceId, Transport, Waited,
};
use longhaul_nvme::QueueRequest;
use longhaul_rnic::{Mtu, QpAttr, QpState, VerbsError};
use longhaul_units::{Duration, Instant, Psn, RKey};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A QP to be connected, and the peer's first PSN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub slot: usize,
    pub peer_psn: Psn,
}

/// Set-up times of a program's connections, from the program's call until its QP can send.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SetupTimes {
    pub sum: Duration,
    pub max: Duration,
}

/// A program that requests connections.
pub(crate) struct Caller {
    pub program: usize,
    pub qps: Vec<Waiting>,
    pub to: IpAddr,
    pub port: u16,
    /// The service's number of the first QP.
    pub first: u32,
    /// Outstanding commands of each QP, of a storage host.
    pub depth: Option<u32>,
    pub mtu: Mtu,
    pub starts_at: Instant,
}

/// The QPs that accept connections at a port.
pub(crate) struct Service {
    pub qps: Vec<Waiting>,
    pub port: u16,
    /// As the callers'.
    pub depth: Option<u32>,
}

/// Progress of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not begun.
    Waiting,
    /// Not all of its QPs are connected.
    Connecting,
    /// The program runs.
    Running,
    /// The program is done, but not all connections have ended.
    Disconnecting,
    Over,
}

struct Call {
    caller: Caller,
    stage: Stage,
    /// Connections that exist or will exist.
    open: usize,
    connected: usize,
    times: SetupTimes,
    failure: Option<String>,
}

/// The local end of a connection.
#[derive(Clone, Copy, Debug)]
enum End {
    /// QP of a call: the call, and its QP's index.
    Caller(usize, usize),
    /// The QP in this slot.
    Service(usize),
}

/// All of a host's connections of the connection manager.
#[derive(Default)]
pub(crate) struct Connections {
    /// In the order of their programs.
    calls: Vec<Call>,
    services: BTreeMap<ListenId, Service>,
    ends: BTreeMap<ConnectionId, End>,
}

impl Connections {
    /// Adds a caller, in the order of programs.
    pub fn call(&mut self, caller: Caller) {
        let open = caller.qps.len();
        let times = SetupTimes::default();
        self.calls.push(Call {
            caller,
            stage: Stage::Waiting,
            open,
            connected: 0,
            times,
            failure: None,
        });
    }

    /// Listens for a service, whose QPs join those of the same port.
    pub fn listen(&mut self, service: Service, nic: &mut Nic) -> Result<(), VerbsError> {
        let known = self.services.values_mut().find(|known| known.port == service.port);
        if let Some(known) = known {
            known.qps.extend(service.qps);
            return Ok(());
        }
        let listening = nic.rnic.cm().listen(ServiceId::tcp(service.port), service.qps.len());
        let listening =
            listening.map_err(|_| VerbsError::Invalid("no room for another listener"))?;
        self.services.insert(listening, service);
        Ok(())
    }

    fn call_of(&self, program: usize) -> Option<&Call> {
        let at = self.calls.binary_search_by_key(&program, |call| call.caller.program).ok()?;
        Some(&self.calls[at])
    }

    /// Returns whether the connections of a program have ended, in success or failure; `None` if it
    /// requested none.
    pub fn is_over(&self, program: usize) -> Option<bool> {
        self.call_of(program).map(|call| call.stage == Stage::Over)
    }

    /// Reason why a program's connections failed.
    pub fn failure(&self, program: usize) -> Option<&str> {
        self.call_of(program)?.failure.as_deref()
    }

    /// Set-up times of a program's connections, once all are established: sum, maximum, and count.
    pub fn setup_times(&self, program: usize) -> Option<(SetupTimes, usize)> {
        let call = self.call_of(program)?;
        (call.connected == call.caller.qps.len()).then_some((call.times, call.connected))
    }

    /// Time at which the next caller begins.
    pub fn next_at(&self) -> Option<Instant> {
        let waiting = self.calls.iter().filter(|call| call.stage == Stage::Waiting);
        waiting.map(|call| call.caller.starts_at).min()
    }

    /// Begins calls.
    pub fn run(&mut self, now: Instant, nic: &mut Nic) {
        for number in 0..self.calls.len() {
            let call = &self.calls[number];
            if call.stage == Stage::Waiting && call.caller.starts_at <= now {
                self.begin(now, number, nic);
            }
        }
    }

    /// Ends the connections of programs that are done.
    pub fn end(&mut self, now: Instant, nic: &mut Nic, programs: &[Program]) {
        for number in 0..self.calls.len() {
            let call = &mut self.calls[number];
            if call.stage == Stage::Running && programs[call.caller.program].is_done() {
                call.stage = if call.open == 0 { Stage::Over } else { Stage::Disconnecting };
                for id in self.ids_of(number) {
                    // Not to the error state: nothing polls the flushed completions.
                    self.move_qp(now, id, QpState::Reset, nic);
                    // The connection is established, or has ended already.
                    let _ = nic.rnic.cm().disconnect(now, id);
                }
            }
        }
    }

    fn ids_of(&self, call: usize) -> Vec<ConnectionId> {
        let of_call = |end: &End| matches!(end, End::Caller(number, _) if *number == call);
        self.ends.iter().filter(|(_, end)| of_call(end)).map(|(id, _)| *id).collect()
    }

    fn begin(&mut self, now: Instant, number: usize, nic: &mut Nic) {
        self.calls[number].stage = Stage::Connecting;
        for index in 0..self.calls[number].caller.qps.len() {
            let asked = request(now, &self.calls[number].caller, index, nic);
            match asked {
                Ok(id) => {
                    self.ends.insert(id, End::Caller(number, index));
                }
                Err(why) => return self.fail(now, number, why, nic),
            }
        }
    }

    /// Handles an event of the connection manager.
    pub fn handle(&mut self, now: Instant, event: Cm, nic: &mut Nic, programs: &mut [Program]) {
        let id = event.connection();
        if let Cm::ConnectRequest { listen, info, .. } = &event {
            return self.accept(now, *listen, id, info, nic);
        }
        let Some(&end) = self.ends.get(&id) else { return };
        let end_of_call = match end {
            End::Caller(number, index) => Some((number, index)),
            End::Service(_) => None,
        };
        match (event, end_of_call) {
            (Cm::ConnectResponse { info, .. }, Some((number, index))) => {
                self.complete(now, (number, index), id, &info, nic, programs);
            }
            (Cm::Rejected { reason, .. }, Some((number, _))) => {
                self.ends.remove(&id);
                self.fail(
                    now,
                    number,
                    format!("the responder rejected the request: {reason}"),
                    nic,
                );
            }
            (Cm::Unreachable { waited, .. }, Some((number, _))) => {
                self.ends.remove(&id);
                let requests = u64::from(nic.rnic.cm().config().retries_max) + 1;
                let seconds = now.since(self.calls[number].caller.starts_at).as_secs_f64();
                let why = match waited {
                    Waited::ForReply => format!("no answer to {requests} REQs in {seconds:.0} s"),
                    waited => waited.to_string(),
                };
                self.fail(now, number, why, nic);
            }
            (Cm::Disconnected { cause, .. }, Some((number, _))) => {
                self.ended(now, number, id, cause, nic)
            }
            (Cm::Disconnected { .. } | Cm::Rejected { .. } | Cm::Unreachable { .. }, None) => {
                self.move_qp(now, id, QpState::Error, nic);
                self.ends.remove(&id);
            }
            _ => {}
        }
    }

    /// As responder, accepts with the QP of the requested number, and announces its memory.
    fn accept(
        &mut self,
        now: Instant,
        listen: ListenId,
        id: ConnectionId,
        info: &RequestInfo,
        nic: &mut Nic,
    ) {
        let asked = self.services.get(&listen).and_then(|service| {
            let offer = Offer::read(info.user_data(), service.depth)?;
            Some((*service.qps.get(offer.index as usize)?, offer, service.depth))
        });
        let made = asked.and_then(|(Waiting { slot, peer_psn }, offer, depth)| {
            let peer = Peer {
                ip: info.peer_ip,
                qpn: info.peer_qpn,
                address: offer.address,
                rkey: offer.rkey,
            };
            let terms = Terms {
                mtu: Mtu::from_code(info.path_mtu_code)?,
                first_psn: info.peer_psn,
                peer_psn,
                timeout: info.local_ack_timeout,
                retry_count: info.retry_count,
                reads: nic.profile.outstanding_reads.min(info.initiator_depth),
            };
            nic.make_ready(now, slot, &peer, &terms).ok()?;
            let own = nic.offer(slot, offer.index).reply(depth);
            let accept = Accept {
                local_qpn: nic.qps[slot].qpn,
                starting_psn: peer_psn,
                responder_resources: READS_SERVED.min(info.responder_resources),
                initiator_depth: terms.reads,
                flow_control: false,
                rnr_retry_count: RNR_RETRIES,
                srq: false,
                private_data: &own,
            };
            nic.rnic.cm().accept(now, id, &accept).ok()?;
            Some(slot)
        });
        match made {
            Some(slot) => {
                self.ends.insert(id, End::Service(slot));
            }
            None => {
                // A pending request can be rejected.
                let _ = nic.rnic.cm().reject(now, id, RejectReason::CONSUMER, &[]);
            }
        }
    }

    /// As requester, makes its QP ready, and starts the program with the last one.
    fn complete(
        &mut self,
        now: Instant,
        (number, index): (usize, usize),
        id: ConnectionId,
        info: &ReplyInfo,
        nic: &mut Nic,
        programs: &mut [Program],
    ) {
        let call = &mut self.calls[number];
        let Waiting { slot, peer_psn } = call.caller.qps[index];
        let offer = Offer::read(info.private_data.as_slice(), call.caller.depth);
        let made = offer.and_then(|offer| {
            let peer = Peer {
                ip: info.peer_ip,
                qpn: info.peer_qpn,
                address: offer.address,
                rkey: offer.rkey,
            };
            let own = nic.terms(call.caller.mtu, [info.peer_psn, peer_psn]);
            let terms = Terms {
                mtu: Mtu::from_code(info.path_mtu_code)?,
                reads: own.reads.min(info.initiator_depth),
                ..own
            };
            nic.make_ready(now, slot, &peer, &terms).ok()?;
            nic.rnic.cm().ready_to_use(now, id).ok()
        });
        if made.is_none() {
            return self.fail(now, number, "the responder's REP makes no sense".to_owned(), nic);
        }
        let took = now.since(call.caller.starts_at);
        call.times.sum = call.times.sum + took;
        call.times.max = call.times.max.max(took);
        call.connected += 1;
        if call.connected == call.caller.qps.len() {
            call.stage = Stage::Running;
            let slots = call.caller.qps.iter().map(|qp| qp.slot).collect();
            programs[call.caller.program].start(now, slots, nic);
        }
    }

    /// A connection of a call has ended, from either side.
    fn ended(
        &mut self,
        now: Instant,
        number: usize,
        id: ConnectionId,
        cause: DisconnectCause,
        nic: &mut Nic,
    ) {
        self.move_qp(now, id, QpState::Error, nic);
        self.ends.remove(&id);
        let call = &mut self.calls[number];
        call.open -= 1;
        if call.stage != Stage::Disconnecting {
            let why = format!("the connection ended before the program did: {cause}");
            self.fail(now, number, why, nic);
        } else if call.open == 0 {
            call.stage = Stage::Over;
        }
    }

    /// Abandons all connections of a call.
    fn fail(&mut self, now: Instant, number: usize, why: String, nic: &mut Nic) {
        let call = &mut self.calls[number];
        let (connected, qps) = (call.connected, call.caller.qps.len());
        call.stage = Stage::Over;
        call.failure.get_or_insert_with(|| match connected == qps {
            true => why,
            false => format!("{connected} of {qps} QPs were connected: {why}"),
        });
        for id in self.ids_of(number) {
            self.move_qp(now, id, QpState::Error, nic);
            self.ends.remove(&id);
            // The connection exists, as all in the table do.
            let _ = nic.rnic.cm().destroy(now, id);
        }
    }

    /// Takes a connection's QP out of service.
    fn move_qp(&mut self, now: Instant, id: ConnectionId, state: QpState, nic: &mut Nic) {
        let slot = match self.ends.get(&id) {
            Some(&End::Caller(number, index)) => self.calls[number].caller.qps[index].slot,
            Some(&End::Service(slot)) => slot,
            None => return,
        };
        // Fails if the QP has already been reset.
        let _ = nic.rnic.modify_qp(now, nic.qps[slot].qpn, &QpAttr::to(state));
    }
}

fn request(
    now: Instant,
    caller: &Caller,
    index: usize,
    nic: &mut Nic,
) -> Result<ConnectionId, String> {
    let Waiting { slot, peer_psn } = caller.qps[index];
    let source = nic.rnic.config().addresses.first();
    let header = RdmaCmHeader { source_port: 0, source, destination: caller.to };
    let offer = nic.offer(slot, caller.first + index as u32).request(caller.depth);
    let private_data = header.with_user_data(&offer).ok_or("the private data do not fit")?;
    let request = ConnectRequest {
        destination_ip: caller.to,
        source_ip: source,
        service_id: ServiceId::tcp(caller.port),
        transport: Transport::Rc,
        local_qpn: nic.qps[slot].qpn,
        starting_psn: peer_psn,
        responder_resources: READS_SERVED,
        initiator_depth: nic.profile.outstanding_reads,
        flow_control: false,
        retry_count: nic.profile.retry_count,
        rnr_retry_count: RNR_RETRIES,
        path_mtu_code: caller.mtu.code(),
        local_ack_timeout: nic.profile.timeout_code,
        srq: false,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
        private_data: &private_data,
    };
    nic.rnic.cm().connect(now, &request).map_err(|why| why.to_string())
}

/// Private data of an end: the number of the QP of its service, and the address of its memory. Of
/// storage programs it stands behind the private data of NVMe over Fabrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub index: u32,
    pub rkey: RKey,
    pub address: u64,
}

impl Offer {
    const LEN: usize = 16;

    /// The private data of a REQ.
    fn request(&self, depth: Option<u32>) -> Vec<u8> {
        let size = |depth: u32| u16::try_from(depth).unwrap_or(u16::MAX);
        let storage = depth.map(size).map(|size| {
            // Queue 0 is the admin queue.
            let queue = (self.index as u16).wrapping_add(1).max(1);
            QueueRequest { queue, receives: size, sends: size, controller: 0 }.write()
        });
        [storage.as_ref().map_or(&[][..], |it| it), &self.write()].concat()
    }

    /// The private data of a REP.
    fn reply(&self, depth: Option<u32>) -> Vec<u8> {
        let size = |depth: u32| u16::try_from(depth).unwrap_or(u16::MAX);
        let storage = depth.map(size).map(|receives| longhaul_nvme::Accept { receives }.write());
        [storage.as_ref().map_or(&[][..], |it| it), &self.write()].concat()
    }

    fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.index.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.address.to_be_bytes());
        bytes
    }

    fn read(private_data: &[u8], depth: Option<u32>) -> Option<Self> {
        let at = if depth.is_some() { longhaul_nvme::REQUEST_LEN } else { 0 };
        let bytes = private_data.get(at..)?;
        let word = |at: usize| Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let address = u64::from(word(8)?) << 32 | u64::from(word(12)?);
        Some(Offer { index: word(0)?, rkey: RKey(word(4)?), address })
    }
}
