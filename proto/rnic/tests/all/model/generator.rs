//! Generates work requests, valid and invalid, posts them, and informs the reference of the
//! permitted effects.

use super::driver::{Driver, INLINE_MAX, any, group};
use super::reference::*;
use crate::pair::{BASE, ip};
use longhaul_rnic::*;
use longhaul_units::{LKey, Qpn, RKey, Rng};
use std::collections::VecDeque;

/// A work request with its effects.
struct Plan {
    op: SendOp,
    segments: Vec<Sge>,
    inline: bool,
    sent: Sent,
    /// Message that the peer receives.
    message: Option<Message>,
    /// Slots that it may write to once posted.
    grants: Vec<(usize, usize, Allowed)>,
    /// The post itself is refused.
    refused: bool,
    taints: bool,
    /// Key of a peer that it invalidates.
    invalidates: Option<(usize, u32)>,
    /// Word at the peer that it uses, and the value afterwards.
    cell: Option<(usize, u64)>,
}

impl Driver {
    pub fn post_send(&mut self, n: usize) {
        let anywhere = self.rng.chance(0.03);
        let ready = |qp: &Qp| {
            use QpState::{ReadyToSend, SendQueueDrained, SendQueueError};
            anywhere || matches!(qp.state, ReadyToSend | SendQueueDrained | SendQueueError)
        };
        let Some(qpn) = self.qp_in(n, ready) else { return };
        let kind = self.model.hosts[n].qps[&qpn].kind;
        for _ in 0..1 + self.rng.below(3) {
            let plan = match kind {
                QpKind::Ud => self.plan_datagram(n, qpn),
                _ => self.plan_connected(n, qpn),
            };
            if let Some(plan) = plan {
                self.post(n, qpn, plan);
            }
        }
    }

    fn post(&mut self, n: usize, qpn: u32, plan: Plan) {
        let solicited = plan.message.as_ref().is_some_and(|m| m.solicited);
        let wr = SendWr {
            wr_id: plan.sent.wr_id,
            op: plan.op,
            segments: &plan.segments,
            inline: plan.inline,
            signaled: plan.sent.signaled,
            solicited,
            fence: self.rng.chance(0.1),
        };
        let now = self.net.now;
        let posted = self.node(n).post_send(now, Qpn::new(qpn), &wr);
        let qp = &self.model.hosts[n].qps[&qpn];
        let (state, is_full) = (qp.state, qp.sends.len() >= qp.sq_depth);
        let is_flushed = matches!(state, QpState::Error | QpState::SendQueueError);
        match posted {
            Err(PostError::BadState(_)) => {
                assert!(matches!(state, QpState::Reset | QpState::Init | QpState::ReadyToReceive));
            }
            Err(PostError::QueueFull { .. }) => assert!(is_full && !is_flushed),
            Err(error) => assert!(plan.refused, "{error} for {wr:?}"),
            Ok(()) => {
                assert!(
                    !plan.refused && state as u8 >= QpState::ReadyToSend as u8,
                    "{wr:?} in {state:?}"
                );
                self.commit(n, qpn, plan);
            }
        }
    }

    fn commit(&mut self, n: usize, qpn: u32, plan: Plan) {
        let state = self.model.hosts[n].qps[&qpn].state;
        let will_leave = !matches!(state, QpState::Error | QpState::SendQueueError);
        for (m, slot, allowed) in plan.grants {
            self.model.hosts[m].slots[slot] = Some(allowed);
        }
        if plan.taints {
            self.model.taint(n, qpn);
        }
        if let (Some(cell), true) = (plan.cell, will_leave)
            && let Some((m, _)) = self.model.hosts[n].qps[&qpn].peer
        {
            self.model.qp(n, qpn).cell = Some(cell);
            if let Some(Allowed::Cell(values)) = &mut self.model.hosts[m].slots[cell.0] {
                values.push_back(cell.1);
            }
        }
        if let Some((m, key)) = plan.invalidates {
            self.model.taint_users_of(m, key);
            if let Some(mr) = self.model.hosts[m].mrs.get_mut(&key) {
                mr.invalidating = true;
            }
        }
        if let (Some(message), true) = (plan.message, will_leave && plan.sent.must_fail.is_none()) {
            let consumes = message.op == CompletionOp::Send || message.immediate.is_some();
            if let (true, Where::Qp(m, peer)) = (consumes, message.to) {
                let index = self.model.messages.len();
                if let Some(other) = self.model.hosts[m].qps.get_mut(&peer)
                    && other.peer == Some((n, qpn))
                {
                    other.incoming.push_back(index);
                }
            }
            self.model.messages.push(message);
        }
        self.model.qp(n, qpn).sends.push_back(plan.sent);
    }

    /// Bytes from the source area, in up to three segments.
    fn gather(&mut self, n: usize, len: usize, lkey: u32) -> (Vec<Sge>, Vec<u8>) {
        let mut cuts = [
            0,
            self.rng.below(len as u64 + 1) as usize,
            self.rng.below(len as u64 + 1) as usize,
            len,
        ];
        cuts.sort_unstable();
        let mut data = Vec::with_capacity(len);
        let segments = cuts
            .windows(2)
            .map(|cut| {
                let piece = cut[1] - cut[0];
                let at = self.rng.below((SOURCE_LEN - piece) as u64 + 1) as usize;
                data.extend_from_slice(&self.model.hosts[n].shadow[at..at + piece]);
                Sge { address: BASE + at as u64, len: piece as u32, lkey: LKey(lkey) }
            })
            .collect();
        (segments, data)
    }

    fn len(&mut self) -> usize {
        match self.rng.below(10) {
            0 => 0,
            1..=3 => self.rng.below(64) as usize,
            4..=7 => self.rng.below(1500) as usize,
            _ => self.rng.below(SLOT_LEN as u64 + 1) as usize,
        }
    }

    fn plan_connected(&mut self, n: usize, qpn: u32) -> Option<Plan> {
        let qp = &self.model.hosts[n].qps[&qpn];
        let (kind, pd, peer) = (qp.kind, qp.pd, qp.peer);
        let lkey = self.model.main_mr(n, pd)?;
        let bad_key = self.rng.chance(0.005);
        let choice = self.rng.below(100);
        let is_rc = kind == QpKind::Rc;
        let peer = peer.filter(|(m, peer)| {
            self.model.hosts[*m].qps.get(peer).is_some_and(|other| other.peer == Some((n, qpn)))
        });
        match peer {
            Some(peer) if choice < 35 => self.plan_write(n, qpn, peer, lkey, bad_key),
            Some(peer) if choice < 50 && is_rc => self.plan_read(n, qpn, peer, lkey, bad_key),
            Some(peer) if choice < 65 && is_rc => self.plan_atomic(n, qpn, peer, lkey),
            _ if choice == 99 => Some(self.plan_nonsense(n, lkey, kind)),
            _ => self.plan_send(n, qpn, kind, peer, lkey, bad_key),
        }
    }

    fn sent(
        &mut self,
        op: CompletionOp,
        data: Vec<u8>,
        len: usize,
        target: Target,
        lkey: (usize, u32),
    ) -> Sent {
        Sent {
            wr_id: self.id(),
            op,
            len: len as u32,
            signaled: self.rng.chance(0.7),
            target,
            data,
            must_fail: None,
            keys: [Some(lkey), None],
        }
    }

    fn plan(&self, op: SendOp, segments: Vec<Sge>, sent: Sent) -> Plan {
        Plan {
            op,
            segments,
            inline: false,
            sent,
            message: None,
            grants: Vec::new(),
            refused: false,
            taints: false,
            invalidates: None,
            cell: None,
        }
    }

    /// Marks a request with a wrong key that needs its bytes as failing.
    fn spoil(&self, plan: &mut Plan, bad_key: bool) {
        let has_bytes = plan.segments.iter().any(|s| s.len > 0);
        if bad_key && has_bytes && !plan.inline {
            plan.segments.iter_mut().for_each(|s| s.lkey = LKey(s.lkey.0 ^ 0x40));
            plan.sent.must_fail = Some(Status::LocalProtection);
            plan.taints = true;
        }
    }

    fn choose_inline(&mut self, plan: &mut Plan) {
        let len: u64 = plan.segments.iter().map(|s| u64::from(s.len)).sum();
        plan.inline = len <= u64::from(INLINE_MAX) + 8 && self.rng.chance(0.5);
        plan.refused = plan.inline && len > u64::from(INLINE_MAX);
    }

    fn immediate(&mut self) -> Option<[u8; 4]> {
        self.rng.chance(0.4).then(|| (self.rng.next_u64() as u32).to_be_bytes())
    }

    fn plan_send(
        &mut self,
        n: usize,
        qpn: u32,
        kind: QpKind,
        peer: Option<(usize, u32)>,
        lkey: u32,
        bad_key: bool,
    ) -> Option<Plan> {
        let len = self.len();
        let (segments, data) = self.gather(n, len, lkey);
        let mut immediate = self.immediate();
        let sent = self.sent(CompletionOp::Send, data.clone(), len, Target::None, (n, lkey));
        let mut key = None;
        if let (QpKind::Rc, Some((m, peer)), true) = (kind, peer, self.rng.chance(0.15)) {
            let pd = self.model.hosts[m].qps[&peer].pd;
            key = any(&self.model.hosts[m].mrs, &mut self.rng).filter(|key| {
                let mr = &self.model.hosts[m].mrs[key];
                mr.slot.is_some() && mr.pd == pd && !mr.invalidating
            });
            key.inspect(|_| immediate = None);
        }
        let op = SendOp::Send { immediate, invalidate: key.map(RKey) };
        let mut plan = self.plan(op, segments, sent);
        if let (Some(key), Some((m, _))) = (key, peer) {
            plan.invalidates = Some((m, key));
            plan.sent.keys[1] = plan.invalidates;
        }
        self.choose_inline(&mut plan);
        self.spoil(&mut plan, bad_key);
        if let Some((m, peer)) = peer {
            plan.message = Some(Message {
                from: n,
                from_qpn: qpn,
                to: Where::Qp(m, peer),
                data,
                op: CompletionOp::Send,
                immediate,
                invalidate: key.is_some(),
                solicited: self.rng.chance(0.3),
                written: None,
                deliveries: 0,
                undeliverable: false,
            });
        }
        Some(plan)
    }

    fn plan_write(
        &mut self,
        n: usize,
        qpn: u32,
        (m, peer): (usize, u32),
        lkey: u32,
        bad_key: bool,
    ) -> Option<Plan> {
        let is_rc = self.model.hosts[n].qps[&qpn].kind == QpKind::Rc;
        let peer_pd = self.model.hosts[m].qps[&peer].pd;
        let rkey = any(&self.model.hosts[m].mrs, &mut self.rng)?;
        let mr = &self.model.hosts[m].mrs[&rkey];
        if mr.invalidating && !mr.invalidated {
            return None;
        }
        let may = mr.pd == peer_pd && mr.access.contains(Access::REMOTE_WRITE) && !mr.invalidated;
        let slot = self.model.slot_of(m, rkey, &mut self.rng)?;
        let len = self.len();
        let beyond =
            may && len > 0 && self.rng.chance(0.1) && self.model.hosts[m].mrs[&rkey].slot.is_some();
        let refused_there = len > 0 && (!may || beyond);
        let (segments, data) = self.gather(n, len, lkey);
        let immediate = self.immediate();
        let target = if refused_there { Target::None } else { Target::Write { node: m, slot } };
        let sent = self.sent(CompletionOp::Write, data.clone(), len, target, (n, lkey));
        let shift = if beyond { SLOT_LEN - len + 1 } else { 0 };
        let remote_address = BASE + (slot_at(slot) + shift) as u64;
        let op = SendOp::Write { remote_address, rkey: RKey(rkey), immediate };
        let mut plan = self.plan(op, segments, sent);
        plan.sent.keys[1] = Some((m, rkey));
        self.choose_inline(&mut plan);
        if refused_there && is_rc {
            plan.sent.must_fail = Some(Status::RemoteAccess);
            plan.taints = true;
        } else if !refused_there {
            plan.grants.push((m, slot, Allowed::Mix(data.clone())));
        }
        self.spoil(&mut plan, bad_key);
        plan.message = Some(Message {
            from: n,
            from_qpn: qpn,
            to: Where::Qp(m, peer),
            data,
            op: CompletionOp::Write,
            immediate,
            invalidate: false,
            solicited: immediate.is_some() && self.rng.chance(0.3),
            written: Some((m, slot)),
            deliveries: 0,
            undeliverable: refused_there,
        });
        Some(plan)
    }

    fn plan_read(
        &mut self,
        n: usize,
        qpn: u32,
        (m, peer): (usize, u32),
        lkey: u32,
        bad_key: bool,
    ) -> Option<Plan> {
        let peer_pd = self.model.hosts[m].qps[&peer].pd;
        let rkey = self.model.main_mr(m, peer_pd)?;
        let slot = self.model.free_slot(n, &mut self.rng)?;
        let len = self.len();
        let from = self.rng.below((SOURCE_LEN - len) as u64 + 1) as usize;
        let data = self.model.hosts[m].shadow[from..from + len].to_vec();
        let mut sent =
            self.sent(CompletionOp::Read, data.clone(), len, Target::Read { slot }, (n, lkey));
        let bad_rkey = len > 0 && self.rng.chance(0.01);
        if bad_rkey {
            sent.must_fail = Some(Status::RemoteAccess);
        }
        let rkey = if bad_rkey { rkey ^ 0x40 } else { rkey };
        let op = SendOp::Read { remote_address: BASE + from as u64, rkey: RKey(rkey) };
        let cut = self.rng.below(len as u64 + 1) as usize;
        let at = BASE + slot_at(slot) as u64;
        let segments = vec![
            Sge { address: at, len: cut as u32, lkey: LKey(lkey) },
            Sge { address: at + cut as u64, len: (len - cut) as u32, lkey: LKey(lkey) },
        ];
        let mut plan = self.plan(op, segments, sent);
        plan.taints = bad_rkey;
        plan.grants.push((n, slot, Allowed::Mix(if bad_rkey { Vec::new() } else { data })));
        self.spoil(&mut plan, bad_key && !bad_rkey);
        plan.refused = self.model.hosts[n].qps[&qpn].reads == 0;
        Some(plan)
    }

    fn plan_atomic(
        &mut self,
        n: usize,
        qpn: u32,
        (m, peer): (usize, u32),
        lkey: u32,
    ) -> Option<Plan> {
        let rkey = self.model.main_mr(m, self.model.hosts[m].qps[&peer].pd)?;
        let own = self.model.free_slot(n, &mut self.rng)?;
        let mut grants = Vec::new();
        let (cell, value) = match self.model.hosts[n].qps[&qpn].cell {
            Some(cell) => cell,
            None => {
                let cell =
                    self.model.free_slot(m, &mut self.rng).filter(|cell| (m, *cell) != (n, own))?;
                let mut word = [0; 8];
                word.copy_from_slice(&self.model.hosts[m].shadow[slot_at(cell)..slot_at(cell) + 8]);
                let value = u64::from_ne_bytes(word);
                grants.push((m, cell, Allowed::Cell(VecDeque::from([value]))));
                (cell, value)
            }
        };
        let remote_address = BASE + slot_at(cell) as u64;
        let (rkey, operand) = (RKey(rkey), self.rng.next_u64());
        let (op, kind, after) = if self.rng.chance(0.5) {
            let op = SendOp::FetchAdd { remote_address, rkey, add: operand };
            (op, CompletionOp::FetchAdd, value.wrapping_add(operand))
        } else {
            let hits = self.rng.chance(0.6);
            let compare = if hits { value } else { value ^ 1 };
            let op = SendOp::CmpSwap { remote_address, rkey, compare, swap: operand };
            (op, CompletionOp::CmpSwap, if hits { operand } else { value })
        };
        let target = Target::Atomic { slot: own, original: value };
        let sent = self.sent(kind, Vec::new(), 8, target, (n, lkey));
        let segments = vec![Sge { address: BASE + slot_at(own) as u64, len: 8, lkey: LKey(lkey) }];
        let mut plan = self.plan(op, segments, sent);
        grants.push((n, own, Allowed::Mix(value.to_ne_bytes().to_vec())));
        plan.grants = grants;
        plan.cell = Some((cell, after));
        plan.refused = self.model.hosts[n].qps[&qpn].reads == 0;
        Some(plan)
    }

    /// Requests that are refused when posted.
    fn plan_nonsense(&mut self, n: usize, lkey: u32, kind: QpKind) -> Plan {
        let (segments, data) = self.gather(n, 100, lkey);
        let sent = self.sent(CompletionOp::Send, data, 100, Target::None, (n, lkey));
        let op = SendOp::Send { immediate: None, invalidate: None };
        let mut plan = self.plan(op, segments, sent);
        plan.refused = true;
        let nowhere = (BASE + 1, RKey(1));
        match self.rng.below(4) {
            0 => plan.segments = vec![plan.segments[0]; 4],
            1 => plan.op = SendOp::FetchAdd { remote_address: nowhere.0, rkey: nowhere.1, add: 1 },
            2 if kind != QpKind::Ud => {
                plan.op = SendOp::Datagram { destination: Destination::default(), immediate: None };
            }
            _ => plan.segments = vec![Sge { address: 0, len: u32::MAX, lkey: LKey(lkey) }; 2],
        }
        plan
    }

    fn plan_datagram(&mut self, n: usize, qpn: u32) -> Option<Plan> {
        let pd = self.model.hosts[n].qps[&qpn].pd;
        let lkey = self.model.main_mr(n, pd)?;
        if self.rng.chance(0.02) {
            return Some(self.plan_nonsense(n, lkey, QpKind::Ud));
        }
        let ah = any(&self.model.hosts[n].ahs, &mut self.rng)?;
        let is_ours = self.model.hosts[n].ahs[&ah].pd == pd;
        if !is_ours && self.rng.chance(0.9) {
            return None;
        }
        let to = self.model.hosts[n].ahs[&ah].to;
        let peers = (0..self.model.hosts.len()).find(|&m| ip(m) == to);
        let (place, peer, qkey) = match peers {
            Some(m) => {
                let peer = any(&self.model.hosts[m].qps, &mut self.rng)?;
                (Where::Qp(m, peer), Qpn::new(peer), self.model.hosts[m].qps[&peer].qkey)
            }
            None => (Where::Group(group(&mut self.rng)), Qpn::MULTICAST, 0x1111),
        };
        let wrong_qkey = self.rng.chance(0.05);
        let len = self.len();
        let (segments, data) = self.gather(n, len, lkey);
        let immediate = self.immediate();
        let sent = self.sent(CompletionOp::Send, data.clone(), len, Target::None, (n, lkey));
        let qkey = if wrong_qkey { 0x3333 } else { qkey };
        let destination = Destination { ah: AhId(ah), qpn: peer, qkey };
        let mut plan = self.plan(SendOp::Datagram { destination, immediate }, segments, sent);
        self.choose_inline(&mut plan);
        let too_long = len > 4096;
        if !is_ours && !too_long {
            plan.sent.must_fail = Some(Status::LocalQpOperation);
            plan.taints = true;
        }
        plan.message = Some(Message {
            from: n,
            from_qpn: qpn,
            to: place,
            data,
            op: CompletionOp::Send,
            immediate,
            invalidate: false,
            solicited: self.rng.chance(0.3),
            written: None,
            deliveries: 0,
            undeliverable: wrong_qkey || too_long,
        });
        Some(plan)
    }

    pub fn post_recv(&mut self, n: usize) {
        if self.rng.chance(0.3)
            && let Some(srq) = any(&self.model.hosts[n].srqs, &mut self.rng)
        {
            return self.post_srq(n, srq, false);
        }
        let anywhere = self.rng.chance(0.03);
        if let Some(qpn) = self.qp_in(n, |qp| anywhere || qp.state != QpState::Reset) {
            self.post_recv_to(n, qpn, false);
        }
    }

    /// Destination of a receive: its slot, its segments, and whether they are invalid or too short.
    fn plan_receive(
        &mut self,
        n: usize,
        pd: u32,
        sound: bool,
    ) -> Option<(Posted, Vec<Sge>, usize, bool)> {
        let key = match any(&self.model.hosts[n].mrs, &mut self.rng) {
            Some(key) if !sound && self.model.hosts[n].mrs[&key].pd == pd => key,
            _ => self.model.main_mr(n, pd)?,
        };
        let slot = self.model.slot_of(n, key, &mut self.rng)?;
        let may_write = self.model.hosts[n].mrs[&key].access.contains(Access::LOCAL_WRITE);
        let bad = !may_write || (!sound && self.rng.chance(0.01));
        let short = !sound && self.rng.chance(0.02);
        let len = if short { self.rng.below(600) as usize } else { SLOT_LEN };
        let wrong = u32::from(bad && may_write) << 6;
        let cut = self.rng.below(len as u64 + 1) as usize;
        let at = BASE + slot_at(slot) as u64;
        let segments = vec![
            Sge { address: at, len: cut as u32, lkey: LKey(key ^ wrong) },
            Sge { address: at + cut as u64, len: (len - cut) as u32, lkey: LKey(key ^ wrong) },
        ];
        let receive = Posted { wr_id: self.id(), slot, bad, lkey: key };
        Some((receive, segments, if bad { 0 } else { len }, bad || short))
    }

    pub fn post_recv_to(&mut self, n: usize, qpn: u32, sound: bool) {
        let qp = &self.model.hosts[n].qps[&qpn];
        let (pd, state, is_full) = (qp.pd, qp.state, qp.receives.len() >= qp.rq_depth);
        if let Some(srq) = qp.srq {
            if !sound {
                let refused =
                    self.node(n).post_recv(Qpn::new(qpn), &RecvWr { wr_id: 0, segments: &[] });
                assert_eq!(refused, Err(PostError::HasSharedQueue));
            }
            return self.post_srq(n, srq, sound);
        }
        let Some((receive, segments, len, spoilt)) = self.plan_receive(n, pd, sound) else {
            return;
        };
        let wr = RecvWr { wr_id: receive.wr_id, segments: &segments };
        match self.node(n).post_recv(Qpn::new(qpn), &wr) {
            Err(PostError::BadState(_)) => assert_eq!(state, QpState::Reset),
            Err(error) => {
                assert!(is_full && matches!(error, PostError::QueueFull { .. }), "{error}")
            }
            Ok(()) => {
                assert_ne!(state, QpState::Reset);
                self.model.hosts[n].slots[receive.slot] = Some(Allowed::Any(len));
                if spoilt {
                    self.model.taint_receives(n, qpn);
                }
                self.model.qp(n, qpn).receives.push_back(receive);
            }
        }
    }

    fn post_srq(&mut self, n: usize, srq: u32, sound: bool) {
        let queue = &self.model.hosts[n].srqs[&srq];
        let (pd, is_full) = (queue.pd, queue.posted.len() as u32 >= queue.depth);
        let Some((receive, segments, len, spoilt)) = self.plan_receive(n, pd, sound) else {
            return;
        };
        let wr = RecvWr { wr_id: receive.wr_id, segments: &segments };
        match self.node(n).post_srq_recv(SrqId(srq), &wr) {
            Err(error) => {
                assert!(is_full && matches!(error, PostError::QueueFull { .. }), "{error}")
            }
            Ok(()) => {
                self.model.hosts[n].slots[receive.slot] = Some(Allowed::Any(len));
                let queue = self.model.hosts[n].srqs.get_mut(&srq).expect("chosen");
                queue.tainted |= spoilt;
                queue.posted.insert(receive.wr_id, receive);
            }
        }
    }
}
