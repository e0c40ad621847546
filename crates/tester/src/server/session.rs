//! One client's test, shared by the server's threads.

use std::collections::HashSet;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use anyhow::{Result, ensure};
use measure::wire::{ControlMessage, DatagramHeader, DatagramKind, RunOrder};

use super::super::conversation::ALIVE_EVERY;
use super::super::local_limits;
use super::super::transfers::{RunTransfers, prepare_receiver, prepare_sender};
use super::{
    ARRIVALS_EACH, JOINING_MAX, LOOK_EVERY, QUIET, REST_MAX, ServerSession, StreamListener, lock,
};

impl ServerSession {
    pub(super) fn is_given_up(&self, order: u32) -> bool {
        self.is_over.load(Ordering::Relaxed) || *lock(&self.given_up) == Some(order)
    }

    /// Claims the session for an order; `false` if another order is in progress.
    pub(super) fn claim(&self, order: u32) -> bool {
        let is_free = !self.is_busy.swap(true, Ordering::AcqRel);
        if !is_free {
            self.fail(order, "the order before this one is not over");
        }
        is_free
    }

    /// Carries out the claimed order, and reports an error.
    pub(super) fn carry_out(&self, order: u32, what: impl FnOnce() -> Result<()>) {
        let result = what();
        self.is_busy.store(false, Ordering::Release);
        if let Err(error) = result {
            self.fail(order, &format!("{error:#}"));
        }
    }

    pub(super) fn fail(&self, order: u32, why: &str) {
        let text: String = why
            .chars()
            .filter(|character| !character.is_control())
            .collect();
        let _ = self.writer.send(&ControlMessage::Failed { order, text });
    }

    /// Tells whether a stream is on its way in either direction; nothing is sent over TCP then.
    pub(super) fn is_measuring(&self) -> bool {
        let is_arriving = |listening: &StreamListener| listening.last.elapsed() < ALIVE_EVERY;
        self.is_streaming.load(Ordering::Relaxed)
            || lock(&self.listening).as_ref().is_some_and(is_arriving)
    }

    /// An empty packet against a stream: it comes.
    pub(super) fn here(&self, order: u32) -> DatagramHeader {
        DatagramHeader {
            kind: DatagramKind::Data,
            session: self.id,
            order,
            number: 0,
            stamp: 0,
            extra: 0,
        }
    }

    /// Reports the arrivals of a stream of so many datagrams, once its rest has arrived, and the
    /// number without room in the socket.
    pub(super) fn report_arrivals(&self, order: u32, datagrams: u64, udp: &UdpSocket) {
        let listened = self.wait_for_rest(order);
        let no_room = listened.as_ref().map(|one| one.no_room.until_now(udp));
        // Before anything is said: the client may have sent the next one when its thread goes on.
        self.is_reporting.store(false, Ordering::Release);
        let Some((listening, no_room)) = listened.zip(no_room) else {
            return;
        };
        let arrivals = listening.log.into_arrivals();
        // Strangers' datagrams, and what a path brings twice, find no room either.
        let missing = datagrams.saturating_sub(arrivals.len() as u64);
        let arrived = arrivals.chunks(ARRIVALS_EACH).map(|some| some.to_vec());
        let arrived = arrived.map(|arrivals| ControlMessage::Arrivals { order, arrivals });
        let dropped = Some(no_room.min(missing)).filter(|datagrams| *datagrams > 0);
        let dropped = dropped.map(|datagrams| ControlMessage::NoRoom { order, datagrams });
        let end = ControlMessage::Arrivals {
            order,
            arrivals: Vec::new(),
        };
        for message in arrived.chain(dropped).chain([end]) {
            if self.writer.send(&message).is_err() {
                return;
            }
        }
    }

    /// Listener of a stream, once no more packets arrive.
    fn wait_for_rest(&self, order: u32) -> Option<StreamListener> {
        let began = Instant::now();
        loop {
            let mut place = lock(&self.listening);
            let listening = place.as_ref().filter(|one| one.order == order)?;
            if listening.last.elapsed() >= QUIET || began.elapsed() >= REST_MAX {
                return place.take();
            }
            drop(place);
            std::thread::sleep(QUIET / 5);
        }
    }

    pub(super) fn wait_for(
        &self,
        order: &RunOrder,
        joined: &Receiver<(u16, TcpStream)>,
    ) -> Result<Vec<(u16, TcpStream)>> {
        let [up, down] = order.connections;
        let wanted = usize::from(up) + usize::from(down);
        let until = Instant::now() + JOINING_MAX;
        let mut numbers = HashSet::new();
        let mut connections = Vec::new();
        while connections.len() < wanted {
            ensure!(!self.is_given_up(order.order), "the run was given up");
            ensure!(
                Instant::now() < until,
                "{} of {wanted} connections came in {} s",
                connections.len(),
                JOINING_MAX.as_secs()
            );
            if let Ok((number, stream)) = joined.recv_timeout(LOOK_EVERY)
                && usize::from(number) < wanted
                && numbers.insert(number)
            {
                connections.push((number, stream));
            }
        }
        Ok(connections)
    }

    pub(super) fn prepare(
        &self,
        order: &RunOrder,
        connections: Vec<(u16, TcpStream)>,
    ) -> Result<RunTransfers> {
        let [up, _] = order.connections;
        let (receiving, sending): (Vec<_>, Vec<_>) = connections
            .into_iter()
            .partition(|(number, _)| *number < up);
        let [window, other] = order.windows;
        for (_, stream) in &receiving {
            prepare_receiver(stream, window);
        }
        for (_, stream) in &sending {
            prepare_sender(stream, other);
            local_limits::set_congestion_control(stream, &order.congestion_control)?;
        }
        Ok(RunTransfers {
            sending,
            receiving,
            window,
            send_window: other,
            duration: order.duration,
        })
    }
}
