//! READs of our own, ahead of the client's, as far as the state of its opens allows and the server
//! and the path have room.

use vocab::Time;

use super::super::wire::transfer::ReadAndxRequest;
use super::{Smb1FarHalf, Smb1RequestPurpose, Smb1StreamFinish};
use crate::smb::config::{AHEAD_CREDITS, AHEAD_MAX};

impl Smb1FarHalf {
    /// Sends READs for the data that clients will probably request.
    pub(super) fn read_ahead(&mut self, now: Time) {
        // What is read beside what may change it could be older than what the near half holds for known.
        let is_held_back = !self.queue.is_empty() || self.changing > 0;
        if is_held_back || self.client_finish != Smb1StreamFinish::Open {
            return;
        }
        let mut ahead = None;
        let mut index = self.reading.len();
        while index > 0 {
            index -= 1;
            let file = self.reading[index];
            if !self.read_ahead_of(now, file, &mut ahead) {
                self.reading.remove(index);
            }
        }
    }

    /// Does the same for one open; returns false when it is no longer read ahead. The sum over all
    /// opens is computed once for all of them, and only when something is wanted.
    fn read_ahead_of(&mut self, now: Time, file: u16, ahead: &mut Option<u64>) -> bool {
        loop {
            // Half of the places stay for the client.
            let places = (self.mpx() / 2).clamp(1, AHEAD_CREDITS as usize);
            let is_full = self.own >= places || self.outstanding.len() >= self.mpx();
            let Some(open) = self.opens.get(&file).filter(|open| open.is_held()) else {
                return false;
            };
            let Some(reads) = &open.reads else {
                return false;
            };
            if open.changing > 0 || is_full || reads.next(u64::MAX).is_none() {
                return true;
            }
            let ahead = ahead.get_or_insert_with(|| self.ahead_of_all());
            let Some(open) = self.opens.get_mut(&file) else {
                return false;
            };
            let Some(reads) = &mut open.reads else {
                return false;
            };
            let Some((offset, length)) = reads.next(AHEAD_MAX.saturating_sub(*ahead)) else {
                return true;
            };
            if !self.pace.has_room(u64::from(length)) {
                return true;
            }
            reads.asked(offset, length);
            *ahead += u64::from(length);
            open.reads_moved();
            open.reading += 1;
            let read = ReadAndxRequest {
                file,
                offset,
                length,
            };
            let message = read.emit(&open.like);
            let purpose = Smb1RequestPurpose::Ahead {
                file,
                serial: open.serial,
                offset,
                length,
                position: self.position,
                at: now,
            };
            self.pace.asked(u64::from(length));
            self.send_own(message, purpose);
        }
    }

    /// The bytes read ahead of all opens together that the client has not requested yet.
    fn ahead_of_all(&self) -> u64 {
        let reading = self.reading.iter();
        let reads = reading.filter_map(|file| self.opens.get(file)?.reads.as_ref());
        reads.map(|reads| reads.ahead()).sum()
    }
}
