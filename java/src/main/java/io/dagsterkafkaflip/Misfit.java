package io.dagsterkafkaflip;

/** Why a record is rejected, in words that follow "record rejected: ". */
class Misfit extends Exception {
  private static final long serialVersionUID = 1L;

  Misfit(String why) {
    // Without a stack trace, which would cost far more than the record.
    super(why, null, false, false);
  }
}
