//! What two nodes say to each other: hello, flows with offsets, acknowledgements, credits.
