//! Calls that create, modify and destroy objects, with their users as the reference knows them.

use super::driver::{Driver, HOSTS, INLINE_MAX, any, group};
use super::reference::*;
use crate::pair::{BASE, ip};
use longhaul_rnic::*;
use longhaul_units::{Instant, LKey, Qpn, Rng};
use std::collections::BTreeMap;

impl Driver {
    pub fn create_pd(&mut self, n: usize) {
        if self.model.hosts[n].pds.len() >= 3 {
            return;
        }
        let pd = self.node(n).alloc_pd().expect("few PDs");
        let len = MEMORY_LEN as u64;
        let mr = self.node(n).reg_mr(pd, BASE, len, BASE, Access::ALL).expect("few MRs");
        let host = &mut self.model.hosts[n];
        assert_eq!(host.pds.insert(pd.0, 1), None);
        let main = Mr {
            pd: pd.0,
            access: Access::ALL,
            slot: None,
            invalidating: false,
            invalidated: false,
        };
        host.mrs.insert(mr.lkey.0, main);
    }

    pub fn destroy_pd(&mut self, n: usize) {
        let Some(pd) = any(&self.model.hosts[n].pds, &mut self.rng) else { return };
        let users = self.model.hosts[n].pds[&pd];
        if self.model.hosts[n].pds.len() > 1
            && users == 1
            && let Some(main) = self.model.main_mr(n, pd)
        {
            self.node(n).dereg_mr(LKey(main)).expect("a region that exists");
            self.node(n).dealloc_pd(PdId(pd)).expect("a PD without users");
            self.model.hosts[n].mrs.remove(&main);
            self.model.hosts[n].pds.remove(&pd);
        } else {
            assert_eq!(
                self.node(n).dealloc_pd(PdId(pd)),
                Err(VerbsError::Busy { what: "PD", users })
            );
        }
    }

    pub fn use_pd(&mut self, n: usize, pd: u32, change: i32) {
        let users = self.model.hosts[n].pds.get_mut(&pd).expect("a PD in use");
        *users = users.saturating_add_signed(change);
    }

    pub fn create_cq(&mut self, n: usize) {
        if self.model.hosts[n].cqs.len() >= 4 {
            return;
        }
        let capacity = if self.rng.chance(0.1) { 4 + self.rng.below(40) as u32 } else { 2000 };
        let cq = self.node(n).create_cq(capacity).expect("few CQs");
        let model = Cq { capacity, users: 0, armed: false, lost: false, newest: Instant::ZERO };
        assert!(self.model.hosts[n].cqs.insert(cq.0, model).is_none());
    }

    pub fn destroy_cq(&mut self, n: usize) {
        let Some(cq) = any(&self.model.hosts[n].cqs, &mut self.rng) else { return };
        match self.model.hosts[n].cqs[&cq].users {
            0 => {
                self.poll_cq(n, cq, usize::MAX);
                self.node(n).destroy_cq(CqId(cq)).expect("a CQ without users");
                self.model.hosts[n].cqs.remove(&cq);
            }
            users => {
                let busy = Err(VerbsError::Busy { what: "CQ", users });
                assert_eq!(self.node(n).destroy_cq(CqId(cq)), busy);
            }
        }
    }

    pub fn change_cq(&mut self, n: usize) {
        let Some(cq) = any(&self.model.hosts[n].cqs, &mut self.rng) else { return };
        let capacity = if self.rng.chance(0.1) { 1 + self.rng.below(40) as u32 } else { 2000 };
        let waiting = self.node(n).cq_len(CqId(cq));
        assert!(waiting <= self.model.hosts[n].cqs[&cq].capacity as usize);
        let changed = self.node(n).resize_cq(CqId(cq), capacity);
        assert_eq!(changed.is_ok(), waiting <= capacity as usize);
        if changed.is_ok() {
            self.model.hosts[n].cqs.get_mut(&cq).expect("chosen").capacity = capacity;
        }
    }

    pub fn arm(&mut self, n: usize) {
        let Some(cq) = any(&self.model.hosts[n].cqs, &mut self.rng) else { return };
        let solicited = self.rng.chance(0.5);
        self.node(n).arm_cq(CqId(cq), solicited).expect("a CQ that exists");
        self.model.hosts[n].cqs.get_mut(&cq).expect("chosen").armed = true;
    }

    pub fn create_srq(&mut self, n: usize) {
        if self.model.hosts[n].srqs.len() >= 2 {
            return;
        }
        let Some(pd) = any(&self.model.hosts[n].pds, &mut self.rng) else { return };
        let depth = 8 << self.rng.below(3);
        let srq = self
            .node(n)
            .create_srq(&SrqInit { pd: PdId(pd), depth, sge_max: 2, limit: 0 })
            .expect("few SRQs");
        let model = Srq {
            pd,
            depth,
            users: 0,
            limit: 0,
            tainted: false,
            posted: BTreeMap::new(),
            carried_off: 0,
        };
        assert!(self.model.hosts[n].srqs.insert(srq.0, model).is_none());
        self.use_pd(n, pd, 1);
    }

    pub fn limit_srq(&mut self, n: usize) {
        let Some(srq) = any(&self.model.hosts[n].srqs, &mut self.rng) else { return };
        let limit = self.rng.below(6) as u32;
        self.node(n).modify_srq(SrqId(srq), None, Some(limit)).expect("a limit within its depth");
        self.model.hosts[n].srqs.get_mut(&srq).expect("chosen").limit = limit;
    }

    pub fn destroy_srq(&mut self, n: usize) {
        let Some(srq) = any(&self.model.hosts[n].srqs, &mut self.rng) else { return };
        let users = self.model.hosts[n].srqs[&srq].users;
        if users > 0 {
            let busy = Err(VerbsError::Busy { what: "SRQ", users });
            assert_eq!(self.node(n).destroy_srq(SrqId(srq)), busy);
            return;
        }
        // Entries in use are those posted and not completed.
        self.poll_all();
        let model = self.model.hosts[n].srqs.remove(&srq).expect("chosen");
        let mut free = 0;
        while self.net.nodes[n]
            .post_srq_recv(SrqId(srq), &RecvWr { wr_id: 0, segments: &[] })
            .is_ok()
        {
            free += 1;
            assert!(free <= model.depth, "more than its depth");
        }
        let (in_use, known) = (model.depth - free, model.posted.len() as u32);
        let any_lost = self.overran;
        assert!(
            any_lost || (in_use <= known && in_use + model.carried_off >= known),
            "{in_use} of {known}"
        );
        self.node(n).destroy_srq(SrqId(srq)).expect("an SRQ without users");
        for receive in model.posted.values() {
            let memory = self.net.nodes[n].memory();
            self.model.release(n, receive.slot, memory);
        }
        self.use_pd(n, model.pd, -1);
    }

    pub fn register(&mut self, n: usize) {
        let Some(pd) = any(&self.model.hosts[n].pds, &mut self.rng) else { return };
        let Some(slot) = self.model.free_slot(n, &mut self.rng) else { return };
        if self.model.hosts[n].mrs.len() > 20 {
            return;
        }
        let access =
            if self.rng.chance(0.6) { Access::ALL } else { Access(self.rng.below(16) as u32) };
        let address = BASE + slot_at(slot) as u64;
        let made = self.node(n).reg_mr(PdId(pd), address, SLOT_LEN as u64, address, access);
        let needs_write = access.0 & 10 != 0 && access.0 & 1 == 0;
        assert_eq!(made.is_err(), needs_write);
        if let Ok(keys) = made {
            let mr = Mr { pd, access, slot: Some(slot), invalidating: false, invalidated: false };
            assert!(self.model.hosts[n].mrs.insert(keys.lkey.0, mr).is_none());
            self.use_pd(n, pd, 1);
        }
    }

    pub fn deregister(&mut self, n: usize) {
        let Some(key) = any(&self.model.hosts[n].mrs, &mut self.rng) else { return };
        let Some(slot) = self.model.hosts[n].mrs[&key].slot else {
            // A stale key.
            let missing = Err(VerbsError::NoSuch("MR"));
            assert_eq!(self.node(n).dereg_mr(LKey(key ^ 0x80)), missing);
            return;
        };
        if self.rng.chance(0.3) {
            return self.register_again(n, key, slot);
        }
        self.node(n).dereg_mr(LKey(key)).expect("a region that exists");
        let mr = self.model.hosts[n].mrs.remove(&key).expect("chosen");
        self.use_pd(n, mr.pd, -1);
        self.model.taint_users_of(n, key);
        self.model.freeze(n, slot, self.net.nodes[n].memory());
    }

    /// Other memory, rights and domain under the same key.
    fn register_again(&mut self, n: usize, key: u32, old_slot: usize) {
        let (Some(pd), Some(slot)) =
            (any(&self.model.hosts[n].pds, &mut self.rng), self.model.free_slot(n, &mut self.rng))
        else {
            return;
        };
        if self.model.hosts[n].mrs[&key].invalidating {
            // Work in flight could invalidate the new region.
            return;
        }
        let access = Access(self.rng.below(16) as u32);
        let (address, len) = (BASE + slot_at(slot) as u64, SLOT_LEN as u64);
        let made = self.node(n).rereg_mr(LKey(key), PdId(pd), address, len, address, access);
        assert_eq!(made.is_err(), access.0 & 10 != 0 && access.0 & 1 == 0);
        if made.is_err() {
            return;
        }
        let mr = Mr { pd, access, slot: Some(slot), invalidating: false, invalidated: false };
        let old = self.model.hosts[n].mrs.insert(key, mr).expect("chosen");
        self.use_pd(n, old.pd, -1);
        self.use_pd(n, pd, 1);
        self.model.taint_users_of(n, key);
        self.model.freeze(n, old_slot, self.net.nodes[n].memory());
    }

    pub fn create_ah(&mut self, n: usize) {
        if self.model.hosts[n].ahs.len() >= 6 {
            return;
        }
        let Some(pd) = any(&self.model.hosts[n].pds, &mut self.rng) else { return };
        let to = match self.rng.below(HOSTS as u64 + 1) as usize {
            HOSTS => group(&mut self.rng),
            m => ip(m),
        };
        let address =
            AddressVector { destination_ip: to, hop_limit: 3, traffic_class: 0, flow_label: 0 };
        let now = self.net.now;
        let ah = self.node(n).create_ah(now, PdId(pd), &address).expect("few handles");
        assert!(self.model.hosts[n].ahs.insert(ah.0, Ah { pd, to }).is_none());
        self.use_pd(n, pd, 1);
    }

    /// Queued datagrams with this handle still use its path.
    pub fn destroy_ah(&mut self, n: usize) {
        let Some(ah) = any(&self.model.hosts[n].ahs, &mut self.rng) else { return };
        self.node(n).destroy_ah(AhId(ah)).expect("a handle that exists");
        let pd = self.model.hosts[n].ahs.remove(&ah).expect("chosen").pd;
        self.use_pd(n, pd, -1);
    }

    pub fn join(&mut self, n: usize) {
        let Some(qpn) = any(&self.model.hosts[n].qps, &mut self.rng) else { return };
        let group = group(&mut self.rng);
        let joined = self.node(n).attach_multicast(Qpn::new(qpn), group);
        let host = &mut self.model.hosts[n];
        assert_eq!(joined.is_ok(), host.qps[&qpn].kind == QpKind::Ud);
        if joined.is_ok() {
            host.groups.entry(group).or_default().insert(qpn);
        }
    }

    pub fn leave(&mut self, n: usize) {
        let Some(qpn) = any(&self.model.hosts[n].qps, &mut self.rng) else { return };
        let group = group(&mut self.rng);
        let left = self.node(n).detach_multicast(Qpn::new(qpn), group);
        let was_in =
            self.model.hosts[n].groups.get_mut(&group).is_some_and(|members| members.remove(&qpn));
        assert_eq!(left.is_ok(), was_in);
    }

    pub fn create_qp(&mut self, n: usize) {
        let host = &self.model.hosts[n];
        let (Some(pd), Some(send_cq), Some(recv_cq)) = (
            any(&host.pds, &mut self.rng),
            any(&host.cqs, &mut self.rng),
            any(&host.cqs, &mut self.rng),
        ) else {
            return;
        };
        if host.qps.len() >= 8 {
            return;
        }
        let kind = [QpKind::Rc, QpKind::Rc, QpKind::Uc, QpKind::Ud][self.rng.below(4) as usize];
        let srq = any(&host.srqs, &mut self.rng).filter(|_| self.rng.chance(0.3));
        let fits = srq.is_none_or(|srq| host.srqs[&srq].pd == pd);
        let (sq_depth, rq_depth) = (1 << self.rng.below(6), 2 << self.rng.below(5));
        let init = QpInit {
            pd: PdId(pd),
            kind,
            send_cq: CqId(send_cq),
            recv_cq: CqId(recv_cq),
            srq: srq.map(SrqId),
            sq_depth,
            rq_depth,
            send_sge_max: 3,
            recv_sge_max: 2,
            inline_max: INLINE_MAX,
            signal_all: false,
        };
        let made = self.node(n).create_qp(&init);
        assert_eq!(made.is_ok(), fits, "{made:?}");
        let Ok(qpn) = made else { return };
        let qp = Qp {
            kind,
            pd,
            send_cq,
            recv_cq,
            srq,
            sq_depth: sq_depth as usize,
            rq_depth: rq_depth as usize,
            state: QpState::Reset,
            peer: None,
            qkey: 0,
            retries_for_ever: true,
            reads: 0,
            sends: Default::default(),
            receives: Default::default(),
            incoming: Default::default(),
            send_failed: false,
            failed_at: Instant::ZERO,
            tainted: false,
            receives_tainted: false,
            peer_gone: false,
            cell: None,
            drain_asked: false,
        };
        assert!(self.model.hosts[n].qps.insert(qpn.get(), qp).is_none());
        self.use_qp_parts(n, qpn.get(), 1);
    }

    fn use_qp_parts(&mut self, n: usize, qpn: u32, change: i32) {
        let host = &mut self.model.hosts[n];
        let qp = &host.qps[&qpn];
        for cq in [qp.send_cq, qp.recv_cq] {
            let users = &mut host.cqs.get_mut(&cq).expect("a CQ in use").users;
            *users = users.saturating_add_signed(change);
        }
        if let Some(srq) = qp.srq {
            let users = &mut host.srqs.get_mut(&srq).expect("an SRQ in use").users;
            *users = users.saturating_add_signed(change);
        }
        let pd = qp.pd;
        self.use_pd(n, pd, change);
    }

    pub fn destroy_qp(&mut self, n: usize) {
        if let Some(qpn) = any(&self.model.hosts[n].qps, &mut self.rng) {
            self.destroy(n, qpn);
        }
    }

    pub fn destroy(&mut self, n: usize, qpn: u32) {
        self.poll_both(n, qpn);
        let groups =
            self.model.hosts[n].groups.values().filter(|members| members.contains(&qpn)).count();
        let destroyed = self.node(n).destroy_qp(Qpn::new(qpn));
        if groups > 0 {
            assert_eq!(destroyed, Err(VerbsError::Busy { what: "QP", users: groups as u32 }));
            return;
        }
        destroyed.expect("a QP without users");
        self.forget_work(n, qpn);
        self.use_qp_parts(n, qpn, -1);
        self.model.hosts[n].qps.remove(&qpn);
    }

    pub fn forget_work(&mut self, n: usize, qpn: u32) {
        let memories: Vec<_> = self.net.nodes.iter().map(|node| node.memory()).collect();
        self.model.forget_work(n, qpn, self.net.now, &memories);
    }
}
